# A student's environment in a container: for JupyterHub on Kubernetes, or for a machine that should stay as it is.
#
#   make release && docker build -t course-student -f grader/student.Dockerfile --build-arg HUB=5.4.1 .
#   docker run --rm -p 8888:8888 -v "$PWD/work:/home/student/work" course-student
#
# HUB is the version of your JupyterHub; leave it out if there is none. torch is the build for the CPU; for GPUs, give
# --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130. The environment and utils/ are read-only, and the
# lessons are copied to ~/work, where the student's answers are kept.

FROM python:3.13-slim-bookworm

ARG HUB=""
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV COURSE=/opt/distributed-training

RUN apt-get update && apt-get install -y --no-install-recommends make && rm -rf /var/lib/apt/lists/*
COPY dist/distributed-training.zip /tmp/course.zip
RUN python -m zipfile -e /tmp/course.zip /opt && rm /tmp/course.zip
RUN cd $COURSE && PIP_NO_CACHE_DIR=1 PIP_EXTRA_INDEX_URL=$TORCH_INDEX make PYTHON=python3 UV= env
RUN [ -z "$HUB" ] || $COURSE/.venv/bin/pip install --no-cache-dir "jupyterhub==$HUB"
RUN $COURSE/.venv/bin/python -m compileall -q $COURSE/utils && chmod -R a+rX,go-w $COURSE
RUN useradd --create-home --uid 1000 student

ENV PATH=$COURSE/.venv/bin:$PATH JUPYTER_CONFIG_PATH=$COURSE/jupyter
USER student
WORKDIR /home/student
CMD ["sh", "-c", "mkdir -p work && cp -Rn $COURSE/notebooks work/ && exec jupyter lab --ip=0.0.0.0 --no-browser work"]
