# A Prometheus for clusters that reach no container registry. Context: a folder with what hack/prometheus finds, and
# prometheus.py.
ARG BASE=python:3.11-slim
FROM $BASE
COPY --chmod=755 prometheus prometheus.py /bin/
USER 65534
ENTRYPOINT ["python3", "/bin/prometheus.py"]
