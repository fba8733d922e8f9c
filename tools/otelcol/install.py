#!/usr/bin/env python3
"""Builds the pinned OpenTelemetry Collector into .tools/otelcol-VERSION/otelcol.

    tools/otelcol/install.py

The version and the hashes of all it is made of stand in go.mod and go.sum beside this file, a module of its own. It has
the receiver for OTLP, and an exporter to files that is in main.go. It needs the Go module proxy and nothing else: two
minutes the first time, seconds with Go's cache. A Collector that is there, of the same sources, is left alone, without
using the network.
"""
import hashlib
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
TOOLS = os.path.join(os.path.dirname(os.path.dirname(HERE)), '.tools')
MODULE = 'go.opentelemetry.io/collector/otelcol'


def read(name):
    with open(os.path.join(HERE, name)) as f:
        return f.read()


def install():
    v = re.search(r'^\s*' + re.escape(MODULE) + r' v(\S+)', read('go.mod'), re.M).group(1)
    sources = hashlib.sha256((read('main.go') + read('go.mod') + read('go.sum')).encode()).hexdigest()
    target = os.path.join(TOOLS, 'otelcol-' + v, 'otelcol')
    if os.path.exists(target) and os.path.exists(target + '.sources'):
        with open(target + '.sources') as f:
            if f.read() == sources:
                return
    print('building the OpenTelemetry Collector %s, which takes minutes once' % v, flush=True)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(target)) as tmp:
        part = os.path.join(tmp, 'otelcol')
        built = subprocess.run([os.environ.get('GO', 'go'), 'build', '-C', HERE, '-trimpath', '-ldflags', '-s -w', '-o', part, '.'],
                               env=dict(os.environ, CGO_ENABLED='0', GOWORK='off', GOFLAGS=''))
        if built.returncode != 0:
            sys.exit('building the OpenTelemetry Collector %s: go build failed (see above)' % v)
        with open(part, 'rb') as f:
            os.fsync(f.fileno())
        os.rename(part, target)
    with open(target + '.sources', 'w') as f:
        f.write(sources)
    print('installed the OpenTelemetry Collector %s' % v)


install()
