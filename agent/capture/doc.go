// Package capture brings the TCP connections of unmodified programs to Envoy: it turns
// settings into one nftables table, inet fairlead, and puts that table into the kernel.
//
// [Parse] reads the settings, [Build] turns them into a [Ruleset] without looking at the host,
// and [Ruleset.String] prints the table as nft lists it. A [Kernel] applies, confirms, drains and
// removes a table by netlink; no nft program is needed.
//
// Capture is opt-in: the connections of declared users to mesh addresses, and the connections
// to declared ports. Some ports are never captured, whatever the settings say: those of sshd,
// of the control plane, of Consul, and of Envoy and the agent themselves.
//
// The package does not run Envoy, and it does not look into connections. It has no goroutines but
// those of [Kernel.Watch]. Package keeper is the process that keeps a table.
package capture
