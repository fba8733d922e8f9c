# The Consul server, on the control plane's host.
server           = true
bootstrap_expect = 1

performance {
  raft_multiplier = 1
}
