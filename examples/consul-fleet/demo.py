#!/usr/bin/env python3
"""A Consul fleet of five hosts on this machine, and its mesh: a Consul server, and for each
host a Consul agent with its service file, a small service, a fairlead agent and its Envoy.
Ctrl-C ends all of it. No root, nothing beyond loopback.

    make demo-consul                   (builds and installs what this needs, then runs it)
"""
import argparse
import glob
import json
import os
import re
import shutil
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), 'quickstart'))
sys.dont_write_bytecode = True
import demo as quickstart  # noqa: E402  what any demo of several hosts needs

# The Consul node, the service, the last number of the address, the protocol of the application, what it calls
HOSTS = [
    ('stock', 'stock', 25, 'grpc', None),
    ('api-1', 'api', 22, 'http', ('grpc', 9090, 'stock')),
    ('api-2', 'api', 23, 'http', ('grpc', 9090, 'stock')),
    ('api-3', 'api', 24, 'http', ('grpc', 9090, 'stock')),
    ('web', 'web', 21, 'http', ('http', 9080, 'api')),
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

    def application(self, node):
        """The address of an application: where its check asks."""
        path, = glob.glob(os.path.join(self.args.consul_dir, node, '*.hcl'))
        with open(path) as f:
            return re.search(r'127\.0\.0\.1:\d+', f.read()).group()

    def server_argv(self):
        return [self.args.fairlead, 'server', '--config-dir', self.args.mesh,
                '--consul-address', self.at(CONTROL, 8500), '--consul-service', '*:tls=istio', '--consul-loopback',
                '--state-dir', os.path.join(self.state, 'server'), '--run-dir', self.server_run(),
                '--xds-address', self.at(CONTROL, 15012), '--http-address', self.at(CONTROL, 15014)]

    def up(self):
        shutil.rmtree(self.state, ignore_errors=True)
        os.makedirs(self.state)
        self.start('consul-server', self.consul_argv('server', CONTROL))
        for node, service, number, protocol, calls in HOSTS:
            self.start('consul-' + node, self.consul_argv(node, number))
            app = [self.args.app, '--name', node, '--listen', self.application(node), '--protocol', protocol]
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

    def registered(self):
        passing = [len(self.get('http://%s/v1/health/service/%s?passing' % (self.at(CONTROL, 8500), s)) or []) for s in ('web', 'api', 'stock')]
        return passing == [1, 3, 1]

    def ready(self):
        out = self.ask('proxy-status', '-o', 'json', '--run-dir', self.server_run())
        if out.returncode not in (0, 1):  # 1: something is not as it should be, yet
            return False
        live = [p for p in json.loads(out.stdout)['proxies'] if p.get('envoy') == 'live' and not p.get('partial')]
        return len(live) >= len(HOSTS) and self.all_answer('http://%s/' % self.at(21, 8080), {'api-1', 'api-2', 'api-3'})

    def pid(self, name):
        return next(p.pid for n, p in self.processes if n == name)

    def tell(self, took):
        rel = os.path.relpath
        lines = [
            ("for i in $(seq 100); do curl -s http://%s/ | grep -o 'api-[123]'; done | sort | uniq -c" % self.at(21, 8080), ''),
            ('edit ' + rel(os.path.join(self.args.mesh, 'api.yaml')), 'the weights: the split follows within a second'),
            ('%s maint -enable -service api-1 -http-addr %s' % (rel(self.args.consul), self.at(22, 8500)), 'out of rotation; -disable brings it back'),
            ('kill %d' % self.pid('api-2-app'), "the application of api-2: out when its check fails"),
            ('bin/fairlead proxy-status --run-dir ' + self.server_run(), ''),
            ('kill -9 %d' % self.pid('consul-server'), 'the Consul server: traffic goes on, edits arrive'),
            (self.script('consul-server', self.consul_argv('server', CONTROL)), 'starts it again'),
            ('kill -9 %d' % self.pid('server'), 'the control plane: nothing happens'),
            (self.script('server', self.server_argv()), 'starts it again'),
        ]
        print('''
A Consul fleet of five hosts and its mesh are up after %.1f s (a host is a loopback address here; no root).

  web  %s  ->  api    %s.22, .23 (v1), .24 (v2, the canary), :9080, HTTP, 90/10
                              stock  %s.25:9090, gRPC, called by api
  Consul http://%s (with its UI), control plane %s, logs in %s

Try, in another terminal:''' % (took, self.at(21, 8080), self.args.network, self.args.network, self.at(CONTROL, 8500), self.at(CONTROL, 15012), rel(self.state)))
        for command, what in lines:
            print(('  %-80s %s' % (command, what)).rstrip())
        print('Ctrl-C ends everything.', flush=True)


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
