#!/usr/bin/env python3
"""A Consul fleet of five hosts on this machine, and its mesh: a Consul server, and for each
host a Consul agent with its service file, a small service, a fairlead agent and its Envoy.
Ctrl-C ends all of it. No root, nothing beyond loopback.

    make demo-consul                   (builds and installs what this needs, then runs it)
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), 'quickstart'))
import demo as quickstart  # noqa: E402  what any demo of several hosts needs

# The Consul node, the service, the last number of the address, the port of the application, its protocol, what it calls
HOSTS = [
    ('stock', 'stock', 25, 18095, 'grpc', None),
    ('api-1', 'api', 22, 18092, 'http', ('grpc', 9090, 'stock')),
    ('api-2', 'api', 23, 18093, 'http', ('grpc', 9090, 'stock')),
    ('api-3', 'api', 24, 18094, 'http', ('grpc', 9090, 'stock')),
    ('web', 'web', 21, 18091, 'http', ('http', 9080, 'api')),
]
CONTROL = 20


class Fleet(quickstart.Demo):
    mortal = ('consul-server', 'server', 'api-2-app')  # what may be killed: that is one of the things to try
    def at(self, number, port):
        return '%s.%d:%d' % (self.args.network, number, port)

    def consul_argv(self, node, number):
        address = '%s.%d' % (self.args.network, number)
        argv = [self.args.consul, 'agent', '-node', node, '-bind', address, '-client', address,
                '-data-dir', os.path.join(self.state, 'consul', node), '-config-dir', os.path.join(self.args.consul_dir, node),
                # Six agents share this machine: what the example does not use stays closed.
                '-dns-port', '-1', '-grpc-port', '-1', '-grpc-tls-port', '-1', '-disable-host-node-id', '-log-level', 'warn']
        return argv if number == CONTROL else argv + ['-retry-join', self.at(CONTROL, 8301), '-retry-interval', '1s']

    def server_argv(self):
        return [self.args.fairlead, 'server', '--config-dir', self.args.mesh,
                '--consul-address', self.at(CONTROL, 8500), '--consul-service', '*:tls=istio',
                '--state-dir', os.path.join(self.state, 'server'), '--run-dir', self.server_run(),
                '--xds-address', self.at(CONTROL, 15012), '--http-address', self.at(CONTROL, 15014)]

    def up(self):
        shutil.rmtree(self.state, ignore_errors=True)
        os.makedirs(self.state)
        self.start('consul-server', self.consul_argv('server', CONTROL))
        for node, service, number, port, protocol, calls in HOSTS:
            self.start('consul-' + node, self.consul_argv(node, number))
            app = [self.args.app, '--name', node, '--listen', '%s.1:%d' % (self.args.network, port), '--protocol', protocol]
            if calls:
                app += ['--next', '%s://%s' % (calls[0], self.at(number, calls[1])), '--next-host', calls[2] + '.service.consul']
            self.start(node + '-app', app)
        self.wait('Consul', 60, self.registered)
        self.start('server', self.server_argv())
        self.wait('the control plane', 30, lambda: self.ask('host', 'list', '--run-dir', self.server_run()).returncode == 0)
        for node, service, number, *_ in HOSTS:
            self.join(node, service, number)
        self.wait('the mesh', 60, self.ready)

    def join(self, node, service, number):
        # As `fairlead token create … | ssh HOST fairlead agent --token-file - …`: the token is in no file and no list of processes.
        token = self.ask('token', 'create', '--host', node, '--workload', 'default/' + service, '--run-dir', self.server_run())
        if token.returncode != 0:
            sys.exit('making a token for %s: %s' % (node, token.stderr.strip()))
        self.start(node, [self.args.fairlead, 'agent', '--token-file', '-', '--address', '%s.%d' % (self.args.network, number),
                          '--envoy', self.args.envoy, '--state-dir', os.path.join(self.state, node),
                          '--run-dir', os.path.join(self.run, node)], token.stdout)

    def get(self, url):
        try:
            with urllib.request.urlopen(url, timeout=2) as r:
                return json.load(r)
        except (OSError, ValueError):
            return None

    def registered(self):
        passing = [len(self.get('http://%s/v1/health/service/%s?passing' % (self.at(CONTROL, 8500), s)) or []) for s in ('web', 'api', 'stock')]
        return passing == [1, 3, 1]

    def ready(self):
        out = self.ask('proxy-status', '-o', 'json', '--run-dir', self.server_run())
        if out.returncode not in (0, 1):  # 1: something is not as it should be, yet
            return False
        live = [p for p in json.loads(out.stdout)['proxies'] if p.get('envoy') == 'live' and not p.get('partial')]
        return len(live) >= len(HOSTS) and self.get('http://%s/' % self.at(21, 8080)) is not None

    def pid(self, name):
        return next(p.pid for n, p in self.processes if n == name)

    def again(self, argv):
        return ' '.join([os.path.relpath(argv[0])] + ["'%s'" % a if '*' in a else a for a in argv[1:]])

    def tell(self, took):
        rel, consul = os.path.relpath, os.path.relpath(self.args.consul)
        print('''
A Consul fleet of five hosts and its mesh are up after %(took).1f s (a host is a loopback address here; no root).

  web  %(web)s  ->  api    %(n)s.22 and .23 (v1), .24 (v2, the canary), :9080, HTTP, 90/10
                              stock  %(n)s.25:9090, gRPC, called by api
  Consul %(http)s (with its UI), control plane %(xds)s, logs in %(state)s

Try, in another terminal:
  for i in $(seq 100); do curl -s http://%(web)s/ | grep -o 'api-[123]'; done | sort | uniq -c
  edit %(edit)s                     the weights: the split follows within a second
  %(consul)s maint -enable -service api-1 -http-addr %(api)s
                                                             out of rotation at once; -disable brings it back
  kill %(app)d                                                its neighbour's application: out when the check fails
  bin/fairlead proxy-status --run-dir %(run)s
  kill -9 %(pid)d                                             the Consul server: traffic goes on (start it again:
      %(again)s)
Ctrl-C ends everything.
''' % {'took': took, 'n': self.args.network, 'web': self.at(21, 8080), 'http': 'http://%s' % self.at(CONTROL, 8500), 'xds': self.at(CONTROL, 15012),
            'state': rel(self.state), 'edit': rel(os.path.join(self.args.mesh, 'api.yaml')), 'consul': consul, 'api': self.at(22, 8500),
            'app': self.pid('api-2-app'), 'run': self.server_run(), 'pid': self.pid('consul-server'),
            'again': self.again(self.consul_argv('server', CONTROL))}, flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--fairlead', default='bin/fairlead')
    p.add_argument('--app', default='bin/quickstart-app')
    p.add_argument('--envoy', required=True)
    p.add_argument('--consul', required=True)
    p.add_argument('--mesh', default=os.path.join(HERE, 'mesh'))
    p.add_argument('--consul-dir', default=os.path.join(HERE, 'consul'))
    p.add_argument('--network', default='127.0.0', help='the first three numbers of every address')
    p.add_argument('--state', default='.demo-consul')
    args = p.parse_args()
    programs = [os.path.abspath(x) for x in (args.fairlead, args.app, args.envoy, args.consul)]
    args.fairlead, args.app, args.envoy, args.consul = programs
    quickstart.run(lambda: Fleet(args), programs, 'make demo-consul')


if __name__ == '__main__':
    main()
