# Sourced by the scripts that find or fetch tools (envtest, gotool, monitoring-crds, prometheus). Parses their arguments.
# Sets `cache`, the folder for fetched tools; `get`, empty for --there; `say`; and `found PLACE`, which prints the place
# and exits if it is complete. Needs `complete PLACE`, which tests that.
cache=${XDG_CACHE_HOME:-$HOME/.cache}

say() { printf '%s\n' "$*" >&2; }
found() { if complete "$1"; then printf '%s\n' "$1"; exit 0; fi; }

get=yes
case ${1:-} in
  '') ;;
  --there) get= ;;
  -h | --help) awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "$0"; exit 0 ;;
  *) say "error: unknown argument $1"; say "hint: $0 -h"; exit 2 ;;
esac
