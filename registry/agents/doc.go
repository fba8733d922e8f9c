// Package agents is the source of what agents report of their workloads: whether the
// application and its Envoy can take traffic. It contributes only health; the other sources
// say which workloads exist.
//
// A host claims the workload that its agent reports on, see [mesh.Claim]. A claim binds the
// network, the address and the workload to one host, and reports of other hosts are ignored.
// The better proof wins; without a proof the first host wins, until it is removed or its lease
// expires. A host that claims the workload of another one is rejected and reported.
//
// A report ends with its stream. Unhealthy counts at once. After the stream is lost the health
// is unknown, and after a grace period the workload is taken out of load balancing; a workload
// that was out before stays out. If very many streams are lost together, the cause is probably
// this server or its network. Then the workloads stay in, which is logged as an error, until
// they return or a person confirms that they are gone.
//
// After a restart all health is unknown, which counts as healthy, until the agents report
// again, so a restart takes no workload out. It lets none in either: workloads that were out
// are saved in a [Store], and stay out until the agent is back and reports otherwise.
//
// The package authenticates nobody. Its caller, the server of ADS streams, guarantees the
// account and the address of a stream, and may call from any goroutine: every call is short
// and never blocks. [Source.Run] is one goroutine, owned by package registry.
package agents
