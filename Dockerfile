# An image with `runner`: docker build -t runner . && docker run --rm --shm-size=4g -v "$PWD:/work" runner train ppo_cartpole
# python:3.11 instead of the slim one has the compiler that learners.compile=true needs.
ARG BASE=python:3.11-slim
FROM ${BASE}

# Where pip looks besides its default index: PyTorch's index of CPU wheels makes an image without CUDA.
ARG PIP_EXTRA_INDEX_URL
# Extras, in brackets: [box2d,video]
ARG EXTRAS=""

WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE CHANGELOG.md ./
COPY runner ./runner
COPY conf ./conf
COPY zoo ./zoo
RUN pip install --no-cache-dir --constraint constraints.txt ".${EXTRAS}" \
    && useradd --create-home --uid 1000 runner \
    && install --directory --owner runner /work

USER 1000
WORKDIR /work
ENTRYPOINT ["runner"]
CMD ["list"]
