#!/usr/bin/env python3
"""Builds the pinned Consul into .tools/consul-VERSION/consul.

    tools/consul/install.py

The version and the hashes of all it is made of stand in go.mod and go.sum beside this file, a module of its own, so
that Consul never votes on the versions of Fairlead. It needs the Go module proxy and nothing else: five minutes on two
cores the first time, seconds with Go's cache. A Consul that is there already is left alone, without using the network.
"""
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
TOOLS = os.path.join(os.path.dirname(os.path.dirname(HERE)), '.tools')
MODULE = 'github.com/hashicorp/consul'


def version():
    with open(os.path.join(HERE, 'go.mod')) as f:
        return re.search(r'^\s*' + re.escape(MODULE) + r' v(\S+)', f.read(), re.M).group(1)


def install(v):
    target = os.path.join(TOOLS, 'consul-' + v, 'consul')
    if os.path.exists(target):
        return
    print('building Consul %s, which takes minutes once' % v, flush=True)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(target)) as tmp:
        part = os.path.join(tmp, 'consul')
        built = subprocess.run([os.environ.get('GO', 'go'), 'build', '-C', HERE, '-trimpath', '-ldflags', '-s -w', '-o', part, MODULE],
                               env=dict(os.environ, CGO_ENABLED='0', GOWORK='off', GOFLAGS=''))
        if built.returncode != 0:
            sys.exit('building Consul %s: go build failed (see above); a Consul of your own works too: put it at %s, '
                     'or its path into FAIRLEAD_CONSUL' % (v, target))
        with open(part, 'rb') as f:
            os.fsync(f.fileno())
        os.rename(part, target)
    print('installed Consul %s' % v)


install(version())
