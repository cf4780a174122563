# syntax=docker/dockerfile:1
# Two images from one build stage: the gateway (the default target) and the Local Agent (`--target local-agent`).
# Each is one binary that runs as a user without rights on a read-only root.

FROM rust:1.95-slim-bookworm AS build
WORKDIR /src
COPY . .
# `sharing=locked`: two builds never unpack into one cache at the same time.
# `touch`: cargo compares modification times, and a tarball or an `rsync -a` may bring sources older than the cache.
RUN --mount=type=cache,id=runnel-registry,target=/usr/local/cargo/registry,sharing=locked \
    --mount=type=cache,id=runnel-target,target=/src/target,sharing=locked \
    find . -path ./target -prune -o -type f -exec touch {} + \
    && cargo build --release --locked --package gateway --bin runnel --package local-agent --bin local-agent \
    && install -D -m 0755 target/release/runnel /out/runnel \
    && install -D -m 0755 target/release/local-agent /out/local-agent \
    && install -d -m 0750 /out/lib/runnel

FROM debian:bookworm-slim AS local-agent
# The certificate authorities for gateways with public certificates.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/local-agent /usr/local/bin/local-agent
USER 65532:65532
ENV LOCAL_AGENT_LISTEN=0.0.0.0:9101
EXPOSE 9101
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 \
    CMD ["/usr/local/bin/local-agent", "--health"]
ENTRYPOINT ["/usr/local/bin/local-agent"]

FROM debian:bookworm-slim AS gateway
# The certificate authorities for runners and providers with public certificates.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/runnel /usr/local/bin/runnel
# The only writable directory: the SQLite database, and the artifacts of runs unless `artifacts.url` names a bucket.
# Mount a volume here.
COPY --from=build --chown=65532:65532 /out/lib/ /var/lib/
WORKDIR /var/lib/runnel
USER 65532:65532
EXPOSE 8700
VOLUME /var/lib/runnel
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=12s --start-period=60s --retries=3 \
    CMD ["/usr/local/bin/runnel", "health", "--config", "/etc/runnel/runnel.toml"]
ENTRYPOINT ["/usr/local/bin/runnel"]
CMD ["serve", "--config", "/etc/runnel/runnel.toml"]
