# syntax=docker/dockerfile:1
# The image `runnel` (the default target) has the gateway and, for other entry points, the Local Agent, the protocol agent and
# the connectors to other platforms. `--target harness` is the harness service with a coding agent and Node.js, `--target
# langbot-bridge` the bridge for LangBot's plugins. Each runs as an unprivileged user on a read-only root file system.

FROM rust:1.95-slim-bookworm AS build
WORKDIR /src
COPY . .
# `sharing=locked`: two builds must not unpack into one cache at the same time.
# `touch`: cargo compares modification times, and sources from a tarball or `rsync -a` may be older than the cache.
RUN --mount=type=cache,id=runnel-registry,target=/usr/local/cargo/registry,sharing=locked \
    --mount=type=cache,id=runnel-target,target=/src/target,sharing=locked \
    find . -path ./target -prune -o -type f -exec touch {} + \
    && cargo build --profile dist --locked --package gateway --bin runnel --package local-agent --bin local-agent \
        --package harness --bin runnel-harness --package connectors --bin runnel-connectors \
        --package protocol-agent --bin runnel-protocol-agent \
    && install -D -m 0755 -t /out/bin target/dist/runnel target/dist/local-agent \
        target/dist/runnel-protocol-agent target/dist/runnel-connectors \
    && install -D -m 0755 -t /out/harness target/dist/runnel-harness \
    && install -d -m 0750 /out/lib/runnel

FROM node:22-bookworm-slim AS harness
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/harness/ /usr/local/bin/
# Coding agents, by npm package: `--build-arg HARNESSES="@anthropic-ai/claude-code @openai/codex"`.
ARG HARNESSES=opencode-ai
RUN npm install --global --no-audit --no-fund $HARNESSES \
    && apt-get update && apt-get install -y --no-install-recommends git && rm -rf /var/lib/apt/lists/* \
    && install -d -m 0700 -o 65532 -g 65532 /var/lib/runnel-harness
USER 65532:65532
EXPOSE 9110
VOLUME /var/lib/runnel-harness
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 \
    CMD ["/usr/local/bin/runnel-harness", "health", "--port", "9110"]
ENTRYPOINT ["/usr/local/bin/runnel-harness"]
CMD ["serve", "--settings", "/etc/runnel/harness.toml"]

FROM python:3.12-slim-bookworm AS langbot-bridge
COPY services/langbot-bridge /opt/langbot-bridge
# The image contains plugins with their requirements: put their directories into services/langbot-bridge/plugins.
RUN pip install --no-cache-dir /opt/langbot-bridge \
    && find /opt/langbot-bridge/plugins -mindepth 2 -maxdepth 2 -name requirements.txt \
        -exec pip install --no-cache-dir --requirement {} \;
USER 65532:65532
EXPOSE 9200
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["langbot-bridge", "--health"]
ENTRYPOINT ["langbot-bridge", "--host", "0.0.0.0", "--all", "/opt/langbot-bridge/plugins"]

FROM debian:bookworm-slim AS runnel
# Certificate authorities for runners and providers with public certificates.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/bin/ /usr/local/bin/
# The only writable directory: the SQLite database, and the artifacts of runs unless `artifacts.url` names a bucket.
# Mount a volume here.
COPY --from=build --chown=65532:65532 /out/lib/ /var/lib/
WORKDIR /var/lib/runnel
ENV HOME=/var/lib/runnel
USER 65532:65532
EXPOSE 8700
VOLUME /var/lib/runnel
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=12s --start-period=60s --retries=3 \
    CMD ["/usr/local/bin/runnel", "health", "--url", "http://127.0.0.1:8700"]
ENTRYPOINT ["/usr/local/bin/runnel"]
# The playground, with its data in the volume. A gateway: `serve --config /etc/runnel/runnel.toml`.
CMD ["dev", "--listen", "0.0.0.0:8700"]
