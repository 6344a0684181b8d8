# An environment's own image, for any ID.
#
#   docker build -f env.Dockerfile --build-arg ENV_ID=pkg://my_package:MyEnv -t my-env FOLDER
#
# FOLDER holds `requirements.txt`, which may be empty, and `wheels/`, where they are looked for
# before the index is: wheels of your own package go there.

ARG BASE=envweave-base:latest
FROM $BASE

# "--no-index" where the folder has everything.
ARG PIP_OPTIONS=""
USER 0:0
COPY requirements.txt /build/
COPY wheels/ /build/wheels/
RUN pip --python /opt/envweave/bin/python install \
        --no-cache-dir --disable-pip-version-check --root-user-action=ignore \
        --find-links /build/wheels $PIP_OPTIONS -r /build/requirements.txt
USER 10001:10001

ARG ENV_ID
LABEL envweave.env=$ENV_ID
ENV ENVWEAVE_ENV=$ENV_ID
