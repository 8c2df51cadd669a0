{{/* Start of all names: release "espalier" gives espalier, release "gpu" gives gpu-espalier. */}}
{{- define "espalier.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 46 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" (.Release.Name | trunc 37 | trimSuffix "-") .Chart.Name -}}
{{- end -}}
{{- end }}

{{- define "espalier.operator" -}}{{ include "espalier.fullname" . }}-operator{{- end }}
{{- define "espalier.agent" -}}{{ include "espalier.fullname" . }}-agent{{- end }}

{{/* Labels of an object. Takes (list context part) or (list context part more); part is operator, agent or empty. */}}
{{- define "espalier.labels" -}}
{{- $root := index . 0 -}}
{{- $own := dict
  "app.kubernetes.io/name" (list "espalier" (index . 1) | compact | join "-")
  "app.kubernetes.io/instance" $root.Release.Name
  "app.kubernetes.io/version" $root.Chart.AppVersion
  "app.kubernetes.io/part-of" "espalier"
  "app.kubernetes.io/managed-by" $root.Release.Service
  "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_")
-}}
{{- $more := dict -}}
{{- if gt (len .) 2 }}{{ $more = index . 2 }}{{ end -}}
{{- toYaml (merge $own $more $root.Values.commonLabels) -}}
{{- end }}

{{/* Labels that select a part's pods. Takes (list context part). */}}
{{- define "espalier.selector" -}}
app.kubernetes.io/name: espalier-{{ index . 1 }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name | quote }}
{{- end }}

{{/* Labels of a part's pods. Takes (list context part). Without versions: a pod is not replaced for a label. */}}
{{- define "espalier.podLabels" -}}
{{- $root := index . 0 -}}
{{- $own := include "espalier.selector" . | fromYaml -}}
{{- $_ := set $own "app.kubernetes.io/part-of" "espalier" -}}
{{- $given := merge (dict) (index $root.Values (index . 1)).podLabels $root.Values.commonLabels -}}
{{- toYaml (merge $own $given) -}}
{{- end }}

{{/* Name of an image. Takes (list context part); part is operator, agent or trainer. */}}
{{- define "espalier.image" -}}
{{- $root := index . 0 -}}
{{- $image := (index $root.Values (index . 1)).image -}}
{{- with $root.Values.image.registry }}{{ . }}/{{ end }}{{ $image.repository -}}
{{- if $image.digest }}@{{ $image.digest }}
{{- else }}:{{ $image.tag | default $root.Values.image.tag | default $root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* Name of a part's ServiceAccount. Takes (list context part). */}}
{{- define "espalier.account" -}}
{{- $root := index . 0 -}}
{{- $account := (index $root.Values (index . 1)).serviceAccount -}}
{{- $account.name | default (include (printf "espalier.%s" (index . 1)) $root) -}}
{{- end }}

{{/* URL of the agent that jobs have that name none; empty where there is none. */}}
{{- define "espalier.agentUrl" -}}
{{- if .Values.agent.url -}}
{{- .Values.agent.url -}}
{{- else if .Values.agent.enabled -}}
http://{{ include "espalier.agent" . }}.{{ .Release.Namespace }}.svc:8080
{{- end -}}
{{- end }}

{{/* The port of a URL. */}}
{{- define "espalier.port" -}}
{{- regexFind "[0-9]+$" (regexFind ":[0-9]+$" (urlParse .).host) | default (hasPrefix "https:" . | ternary "443" "80") -}}
{{- end }}

{{/* What restricted pod security asks of a pod. */}}
{{- define "espalier.podSecurity" -}}
runAsNonRoot: true
{{- with .Values.securityContext.runAsUser }}
runAsUser: {{ int64 . }}
runAsGroup: {{ int64 . }}
fsGroup: {{ int64 . }}
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* What it asks of a container, and a root file system that nobody writes to. Takes (list context part): the part's
containerSecurityContext replaces and completes that. */}}
{{- define "espalier.containerSecurity" -}}
{{- $own := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" (dict "drop" (list "ALL")) -}}
{{- toYaml (merge (dict) (index (index . 0).Values (index . 1)).containerSecurityContext $own) -}}
{{- end }}

{{/* A probe. Takes (list context part name default); the part's probes.NAME replaces and completes the default. */}}
{{- define "espalier.probe" -}}
{{- $given := index (index (index . 0).Values (index . 1)).probes (index . 2) -}}
{{- toYaml (merge (dict) $given (index . 3)) -}}
{{- end }}

{{/* Whether scrapers of metrics are reviewed; empty: not. */}}
{{- define "espalier.metricsReviewed" -}}{{ if eq .Values.metrics.authentication "TokenReview" }}true{{ end }}{{- end }}

{{/* Whether the agent asks the API server for anything; empty: not. */}}
{{- define "espalier.agentReviews" -}}
{{- if or (eq .Values.agent.authentication "TokenReview") (include "espalier.metricsReviewed" .) }}true{{ end -}}
{{- end }}

{{/* Arguments, port, mount and volume of metrics over TLS. */}}
{{- define "espalier.metricsArguments" -}}
- --metrics-tls-dir=/metrics-tls
- --metrics-authentication={{ .Values.metrics.authentication }}
{{- end }}
{{- define "espalier.metricsPort" -}}
- name: metrics
  containerPort: 8443
{{- end }}
{{- define "espalier.metricsMount" -}}
- name: metrics-tls
  mountPath: /metrics-tls
  readOnly: true
{{- end }}
{{- define "espalier.metricsVolume" -}}
- name: metrics-tls
  secret:
    secretName: {{ .Values.metrics.tlsSecret | quote }}
{{- end }}

{{/* Where a part's pods may be, and what holds them up. Takes (list context part). */}}
{{- define "espalier.placement" -}}
{{- $root := index . 0 -}}
{{- $values := index $root.Values (index . 1) -}}
{{- $secrets := list -}}
{{- range concat $root.Values.image.pullSecrets ((($root.Values.global).imagePullSecrets) | default list) -}}
{{- if kindIs "map" . }}{{ $secrets = append $secrets .name }}{{ else }}{{ $secrets = append $secrets . }}{{ end -}}
{{- end -}}
{{- with uniq $secrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.dnsPolicy }}
dnsPolicy: {{ . | quote }}
{{- end }}
{{- with $values.dnsConfig }}
dnsConfig:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Different nodes and zones for a part's pods, where there are any and nothing else is said. Takes (list context part). */}}
{{- define "espalier.spread" -}}
{{- $values := index (index . 0).Values (index . 1) -}}
{{- $selector := include "espalier.selector" . -}}
{{- if kindIs "slice" $values.topologySpreadConstraints -}}
{{- with $values.topologySpreadConstraints -}}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end -}}
{{- else if not $values.affinity -}}
topologySpreadConstraints:
  {{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ $key }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- $selector | nindent 8 }}
  {{- end }}
{{- end }}
{{- end }}

{{/* How a monitor scrapes. Takes (list context values more), values are those of the monitor, more are relabelings. */}}
{{- define "espalier.scrape" -}}
{{- $values := index . 1 -}}
path: /metrics
interval: {{ $values.interval | quote }}
{{- with $values.scrapeTimeout }}
scrapeTimeout: {{ . | quote }}
{{- end }}
{{- with concat (index . 2) $values.relabelings }}
relabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.metricRelabelings }}
metricRelabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tlsConfig }}
tlsConfig:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* How many agents there are at least. */}}
{{- define "espalier.agents" -}}
{{- if .Values.agent.autoscaling.enabled }}{{ .Values.agent.autoscaling.minReplicas }}{{ else }}{{ .Values.agent.replicas }}{{ end -}}
{{- end }}

{{/* A setting of the scheduling policy. Numbers in files of values have a fraction here, and whole ones from a million on
would be written as 1e+06. */}}
{{- define "espalier.setting" -}}
{{- if and (kindIs "float64" .) (eq (float64 (int64 .)) .) }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- end }}

{{/* The scheduling policy, as --policy takes it. */}}
{{- define "espalier.policy" -}}
{{- $settings := list -}}
{{- range $key, $value := .Values.policy.settings -}}
{{- $parts := list -}}
{{- range kindIs "slice" $value | ternary $value (list $value) -}}
{{- $parts = append $parts (include "espalier.setting" .) -}}
{{- end -}}
{{- $settings = append $settings (printf "%s=%s" $key (join "/" $parts)) -}}
{{- end -}}
{{- .Values.policy.name }}{{ if $settings }}:{{ join "," $settings }}{{ end -}}
{{- end }}

{{/* What types cannot say of the values. */}}
{{- define "espalier.check" -}}
{{- $name := include "espalier.fullname" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) -}}
{{- fail (printf "fullnameOverride is empty, and the release's name makes %q the start of the names of Services, which must begin with a letter and have no dots: set fullnameOverride" $name) -}}
{{- end -}}
{{- $policy := .Values.agent.policy -}}
{{- $needed := dict "ConfigMap" "configMap" "PersistentVolumeClaim" "claim" "Image" "image" -}}
{{- range $source, $key := $needed -}}
{{- if and (eq $policy.source $source) (not (index $policy $key)) -}}
{{- fail (printf "agent.policy.%s is empty, and agent.policy.source is %s: name it" $key $source) -}}
{{- end -}}
{{- if and (ne $policy.source $source) (index $policy $key) -}}
{{- fail (printf "agent.policy.%s is %q, and agent.policy.source is %s: set the source to %s, or leave the other out" $key (index $policy $key) $policy.source $source) -}}
{{- end -}}
{{- end -}}
{{- if and $policy.subPath (ne $policy.source "PersistentVolumeClaim") -}}
{{- fail (printf "agent.policy.subPath is %q, and agent.policy.source is %s: only a PersistentVolumeClaim has one" $policy.subPath $policy.source) -}}
{{- end -}}
{{- $file := .Values.policy.file -}}
{{- $settings := .Values.policy.settings -}}
{{- $learned := eq .Values.policy.name "learned" -}}
{{- if and $learned (eq $file.source "None") (not (hasKey $settings "url")) -}}
{{- fail "policy.name is learned, and policy.file.source is None: name a ConfigMap, Secret or PersistentVolumeClaim with the policy file, or in policy.settings.url a policy server" -}}
{{- end -}}
{{- if and (ne $file.source "None") (not $learned) -}}
{{- fail (printf "policy.file.source is %s, and policy.name is %s: only learned has a file; set the source to None" $file.source .Values.policy.name) -}}
{{- end -}}
{{- if and (ne $file.source "None") (not $file.name) -}}
{{- fail (printf "policy.file.name is empty, and policy.file.source is %s: name it" $file.source) -}}
{{- end -}}
{{- if and (eq $file.source "None") $file.name -}}
{{- fail (printf "policy.file.name is %q, and policy.file.source is None: set the source to the kind of that object, or leave the name out" $file.name) -}}
{{- end -}}
{{- $audit := .Values.operator.audit -}}
{{- if and $audit.claim (not $audit.enabled) -}}
{{- fail (printf "operator.audit.claim is %q, and operator.audit.enabled is false: enable it, or leave the claim out" $audit.claim) -}}
{{- end -}}
{{- $outcomes := .Values.agent.outcomes -}}
{{- if and $outcomes.claim (not $outcomes.enabled) -}}
{{- fail (printf "agent.outcomes.claim is %q, and agent.outcomes.enabled is false: enable it, or leave the claim out" $outcomes.claim) -}}
{{- end -}}
{{- $scaling := .Values.agent.autoscaling -}}
{{- if and $scaling.enabled (gt (int $scaling.minReplicas) (int $scaling.maxReplicas)) -}}
{{- fail (printf "agent.autoscaling.minReplicas is %d, more than agent.autoscaling.maxReplicas, which is %d" (int $scaling.minReplicas) (int $scaling.maxReplicas)) -}}
{{- end -}}
{{- range $part := list "operator" "agent" -}}
{{- $account := (index $.Values $part).serviceAccount -}}
{{- if not (or $account.create $account.name) -}}
{{- fail (printf "%s.serviceAccount.name is empty, and %s.serviceAccount.create is false: name the one that is there" $part $part) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.networkPolicy.workers (not .Values.watchNamespaces) -}}
{{- fail "networkPolicy.workers is true, and watchNamespaces is empty: name the namespaces of the jobs, whose pods the policies are for" -}}
{{- end -}}
{{- if and (include "espalier.metricsReviewed" .) (not .Values.metrics.tlsSecret) -}}
{{- fail "metrics.authentication is TokenReview, and metrics.tlsSecret is empty: tokens need TLS; name a Secret with a certificate" -}}
{{- end -}}
{{- $controller := .Values.operator.controllerName -}}
{{- range (lookup "apps/v1" "Deployment" .Release.Namespace "").items -}}
{{- $labels := .metadata.labels | default dict -}}
{{- $release := get $labels "app.kubernetes.io/instance" -}}
{{- if and (eq (get $labels "app.kubernetes.io/name") "espalier-operator") (ne $release $.Release.Name) -}}
{{- if has (printf "--controller-name=%s" $controller) (index .spec.template.spec.containers 0).args -}}
{{- fail (printf "operator.controllerName is %q, as that of the Deployment %s in the same namespace: they have one Lease, so this release would never act. Set another one, and as spec.controllerName of its jobs, or install it into another namespace" $controller .metadata.name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if gt (float64 .Values.operator.seconds.restart) (float64 .Values.operator.seconds.maxRestart) -}}
{{- fail (printf "operator.seconds.restart is %v, more than operator.seconds.maxRestart, which is %v" .Values.operator.seconds.restart .Values.operator.seconds.maxRestart) -}}
{{- end -}}
{{- end }}

{{- /* Whether the operator creates NetworkPolicies: policies add up, so none where that of the namespace admits less. */}}
{{- define "espalier.jobPolicies" -}}
{{- if and .Values.networkPolicy.jobs (not .Values.networkPolicy.workers) }}true{{ end }}
{{- end }}
