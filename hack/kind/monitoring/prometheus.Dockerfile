# A Prometheus for clusters that reach no container registry. Context: the folder with what hack/prometheus-kubernetes prints.
ARG BASE=debian:12-slim
FROM $BASE
COPY --chmod=755 prometheus /bin/prometheus
USER 65534
ENTRYPOINT ["/bin/prometheus"]
