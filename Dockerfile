# syntax=docker/dockerfile:1
# The gateway alone, as a user without rights, on a root that is never written to.

FROM rust:1.95-slim-bookworm AS build
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked --package gateway --bin runnel \
    && install -D -m 0755 target/release/runnel /out/runnel \
    && install -d -m 0750 /out/lib/runnel

FROM debian:bookworm-slim
# The authorities that runners with public certificates are checked against.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/runnel /usr/local/bin/runnel
# The one place that it writes to: the database of SQLite, and the files of runs (`artifacts.url`) unless a bucket
# has them. Mount a volume here.
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
