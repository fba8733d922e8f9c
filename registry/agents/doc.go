// Package agents is the source of what agents report of their workloads: whether the
// application and its Envoy can take traffic. It contributes only health; the other sources
// say which workloads exist.
//
// A host claims the workload that its agent reports on, see [mesh.Claim]. A claim binds the
// network, the address and the workload to one host, and reports of other hosts are ignored.
// The better proof wins; without a proof the first host wins, until it is removed or its lease
// expires. A host that claims the workload of another one is rejected and reported.
//
// A report ends with its stream. Unhealthy counts at once, and a workload that was out before
// its stream was lost stays out. Silence is no verdict: after a lost stream the health is
// unknown, and after a grace period the workload is [mesh.Silent], which means that it is used
// only where no better one is left. Only a report, its source or a person takes it out. So it
// does not matter whether hosts are dead or only cut off from this server, nor how many are.
//
// After a restart all health is unknown, which counts as healthy, until the agents report
// again. Those that have not come back after [Config.Settle] are silent. Workloads that were
// out or silent before are saved in a [Store], and stay so until the agent is back.
//
// The package authenticates nobody. Its caller, the server of ADS streams, guarantees the
// account and the address of a stream, and may call from any goroutine: every call is short
// and never blocks. [Source.Run] is one goroutine, owned by package registry.
package agents
