# Python, envweave and what its server needs: the base of every environment's image.
#
#   scripts/docker-images base
#
# The build context holds `wheels/`, a folder of wheels: envweave's own, and those that it needs
# where no index can be reached; and `requirements.txt`, which names the latter. BuildKit is not
# needed.

ARG BASE=python:3.11-slim
FROM $BASE AS builder

# "--no-index" where the folder has everything.
ARG PIP_OPTIONS=""
COPY requirements.txt /build/
COPY wheels/ /build/wheels/
RUN python3 -m venv --without-pip /opt/envweave \
    && python3 -m pip --python /opt/envweave/bin/python install \
        --no-cache-dir --disable-pip-version-check --root-user-action=ignore \
        --find-links /build/wheels $PIP_OPTIONS -r /build/requirements.txt \
    && find /opt/envweave -type d -name tests -prune -exec rm -r {} +

FROM $BASE

COPY --from=builder /opt/envweave /opt/envweave
COPY envweave/ /build/
RUN python3 -m pip --python /opt/envweave/bin/python install \
        --no-cache-dir --disable-pip-version-check --root-user-action=ignore \
        --no-index --no-deps /build/*.whl \
    && rm -r /build
COPY health.py /opt/envweave/

ENV PATH=/opt/envweave/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    HOME=/tmp \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
# Its server is told by environment variables what to serve, and how.
LABEL envweave.server=1
EXPOSE 8000
USER 10001:10001
WORKDIR /tmp
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s \
    CMD ["/opt/envweave/bin/python", "-I", "-S", "/opt/envweave/health.py"]
CMD ["/opt/envweave/bin/python", "-m", "envweave.cli.container_main"]
