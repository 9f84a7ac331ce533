# The images of headrace: one file, a target for each service (bridge, streams, api, spark, publisher).
#
# For each service one stage makes a virtual environment of exactly its locked dependencies; the image gets that
# environment as one layer and our sources as another, so a changed line of code costs a small layer. Nothing of uv, pip,
# caches or headers reaches an image, and nothing in it runs as root.
#
# The package index is the default one, or what these variables of the caller say: UV_DEFAULT_INDEX, UV_INDEX,
# PIP_INDEX_URL (docker build --build-arg NAME, docker-compose.yml passes them on).

ARG PYTHON_IMAGE=python:3.13-slim

# --- what every image stands on -------------------------------------------------------------------------------------
FROM ${PYTHON_IMAGE} AS base
RUN groupadd --gid 10001 headrace \
 && useradd --uid 10001 --gid headrace --home-dir /data --no-create-home --shell /usr/sbin/nologin headrace \
 && install --directory --owner headrace --group headrace /data
ENV PATH=/opt/headrace/venv/bin:$PATH \
    PYTHONPATH=/opt/headrace/lib \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/data
WORKDIR /data

FROM base AS java
RUN apt-get update -qq \
 && apt-get install -y -qq --no-install-recommends openjdk-21-jre-headless >/dev/null \
 && rm -rf /var/lib/apt/lists/*

# --- the locked dependencies of each service ------------------------------------------------------------------------
FROM ${PYTHON_IMAGE} AS lock
ARG UV_RELEASE=0.13.9
ARG PIP_INDEX_URL
RUN pip install --quiet --no-cache-dir --root-user-action=ignore "uv==${UV_RELEASE}"
ENV UV_PROJECT_ENVIRONMENT=/opt/headrace/venv \
    UV_PYTHON=python3 \
    UV_PYTHON_DOWNLOADS=never \
    UV_LINK_MODE=copy \
    UV_HTTP_TIMEOUT=300
WORKDIR /workspace
COPY pyproject.toml uv.lock ./
COPY core/pyproject.toml core/
COPY capacity/pyproject.toml capacity/
COPY schemas/pyproject.toml schemas/
COPY services/mqtt_bridge/pyproject.toml services/mqtt_bridge/
COPY services/stream_processor/pyproject.toml services/stream_processor/
COPY services/status_api/pyproject.toml services/status_api/
COPY services/local_stack/pyproject.toml services/local_stack/
COPY spark_jobs/pyproject.toml spark_jobs/
ARG UV_DEFAULT_INDEX
ARG UV_INDEX

FROM lock AS bridge-venv
RUN --mount=type=cache,target=/root/.cache/uv \
    uv sync --quiet --locked --no-dev --no-install-workspace --package headrace-bridge

FROM lock AS streams-venv
RUN --mount=type=cache,target=/root/.cache/uv \
    uv sync --quiet --locked --no-dev --no-install-workspace --package headrace-streams

FROM lock AS api-venv
RUN --mount=type=cache,target=/root/.cache/uv \
    uv sync --quiet --locked --no-dev --no-install-workspace --package headrace-api

FROM lock AS publisher-venv
RUN --mount=type=cache,target=/root/.cache/uv \
    uv sync --quiet --locked --no-dev --no-install-workspace --package headrace

FROM lock AS spark-venv
RUN --mount=type=cache,target=/root/.cache/uv \
    uv sync --quiet --locked --no-dev --no-install-workspace --package headrace-spark

# --- the connector's jars, by the code that the local stack uses ----------------------------------------------------
# Java shall trust whom the base image trusts: its certificate bundle becomes Java's trust store for the download.
FROM java AS jars
COPY --from=spark-venv /opt/headrace/venv /opt/headrace/venv
COPY core/src/headrace_core/__init__.py core/src/headrace_core/errors.py /opt/headrace/lib/headrace_core/
COPY services/local_stack/src/headrace/__init__.py services/local_stack/src/headrace/java.py \
     services/local_stack/src/headrace/jars.py /opt/headrace/lib/headrace/
RUN openssl pkcs12 -export -nokeys -jdktrust anyExtendedKeyUsage -passout pass:public -out /tmp/trust.p12 \
      -in "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}" \
 && export JAVA_TOOL_OPTIONS="-Djavax.net.ssl.trustStore=/tmp/trust.p12 -Djavax.net.ssl.trustStorePassword=public" \
 && XDG_CACHE_HOME=/tmp/cache python -c 'from headrace.jars import connector_jars; connector_jars()' \
 && mkdir -p /opt/headrace/jars \
 && cp /tmp/cache/headrace/spark-kafka-*/*.jar /opt/headrace/jars/

# --- the images -----------------------------------------------------------------------------------------------------
FROM base AS bridge
COPY --from=bridge-venv /opt/headrace/venv /opt/headrace/venv
COPY core/src services/mqtt_bridge/src /opt/headrace/lib/
ENV HEADRACE_BRIDGE_HTTP_HOST=0.0.0.0 HEADRACE_BRIDGE_STATE_DIR=/data
USER headrace
EXPOSE 8081
CMD ["python", "-m", "headrace_bridge"]

FROM base AS streams
COPY --from=streams-venv /opt/headrace/venv /opt/headrace/venv
COPY core/src services/stream_processor/src /opt/headrace/lib/
ENV HEADRACE_STREAMS_HTTP_HOST=0.0.0.0 HEADRACE_STREAMS_DATA_DIR=/data
USER headrace
EXPOSE 8082
CMD ["python", "-m", "headrace_streams"]

FROM base AS api
COPY --from=api-venv /opt/headrace/venv /opt/headrace/venv
COPY core/src capacity/src services/status_api/src /opt/headrace/lib/
ENV HEADRACE_API_HTTP_HOST=0.0.0.0 HEADRACE_API_DATA_DIR=/data
USER headrace
EXPOSE 8080
CMD ["python", "-m", "headrace_api"]

FROM base AS publisher
COPY --from=publisher-venv /opt/headrace/venv /opt/headrace/venv
COPY core/src capacity/src schemas/src services/local_stack/src /opt/headrace/lib/
USER headrace
ENTRYPOINT ["python", "-m", "headrace", "publish"]

FROM java AS spark
COPY --from=jars /opt/headrace/jars /opt/headrace/jars
COPY --from=spark-venv /opt/headrace/venv /opt/headrace/venv
COPY core/src capacity/src spark_jobs/src /opt/headrace/lib/
ENV SPARK_LOCAL_DIRS=/data/scratch
USER headrace
EXPOSE 8083
ENTRYPOINT ["python", "-m", "headrace_spark.jobs.writer"]
CMD ["--config", "/etc/headrace/writer.toml"]
