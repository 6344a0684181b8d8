# An environment's own image, for any ID: what `envweave build` has the engine build.
#
# The build context holds `requirements.txt`, which may be empty, and `wheels/`, where they are
# looked for before the index is: wheels of one's own package are there. BuildKit is not needed.

ARG BASE=envweave-base:latest
FROM $BASE AS builder

# By which what is left of this stage is found, and removed.
ARG BUILD=""
LABEL envweave.stage=$BUILD
# "--no-index" where the folder has everything.
ARG PIP_OPTIONS=""
USER 0:0
COPY requirements.txt /build/
COPY wheels/ /build/wheels/
# The wheels stay behind with this stage. What pip wrote goes on, and the names of what it removed.
RUN cd / && find opt/envweave | sort > /build/before \
    && pip --python /opt/envweave/bin/python install \
        --no-cache-dir --disable-pip-version-check --root-user-action=ignore \
        --find-links /build/wheels $PIP_OPTIONS -r /build/requirements.txt \
    && find opt/envweave | sort > /build/after \
    && mkdir -p /build/new/opt/envweave \
    && find opt/envweave ! -type d -cnewer /build/before > /build/written \
    && tar --create --files-from=/build/written | tar --extract --directory=/build/new \
    && comm -23 /build/before /build/after > /build/new/opt/envweave/removed
USER 10001:10001
# An image whose server would not find its environment is none.
ARG ENV_ID
RUN ["/opt/envweave/bin/python", "-I", "-c", "import os, sys; sys.tracebacklimit = 0; import envweave; envweave.spec(os.environ['ENV_ID']).load()"]

FROM $BASE

USER 0:0
COPY --from=builder --chown=10001:10001 /build/new/opt/envweave/ /opt/envweave/
RUN cd / && xargs --no-run-if-empty --delimiter='\n' rm -rf < /opt/envweave/removed \
    && rm /opt/envweave/removed
USER 10001:10001

ARG ENV_ID
LABEL envweave.env=$ENV_ID
ENV ENVWEAVE_ENV=$ENV_ID
