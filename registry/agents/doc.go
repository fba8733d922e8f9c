// Package agents is the source of what agents say of their workloads: whether
// the application and its Envoy can take traffic. It contributes nothing but
// health; which workloads there are is the business of the other sources.
//
// A host claims the workload that its agent reports on, see [mesh.Claim]: a claim
// binds the network, the address and the workload to one host, and nobody else is
// heard on it. The better proof has it, without one who comes first, until the host is
// removed or its lease is over. Who claims what is another's is refused and named.
//
// What an agent says ends with its stream. A report of unhealthy counts at
// once. When the stream is lost nothing is known any more, and after a grace
// the workload is out; a workload that was out is silent, and not let in by that. When very many
// streams are lost together it is more likely that this server, or its network,
// is the cause: then the workloads stay in, loudly, until they return or a
// person says that they are really gone. After a restart nothing is known of
// anybody, which counts as healthy, until the agents report again; so a restart
// takes nobody out. It lets nobody in either: who was out is kept in a [Store],
// and stays out until the agent is back and says otherwise.
//
// The package authenticates nobody. Its caller, the server of ADS streams,
// vouches for the account and the address of a stream, and may call from any
// goroutine: every call is short and never blocks. [Source.Run] is one goroutine,
// owned by package registry.
package agents
