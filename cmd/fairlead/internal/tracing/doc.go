// Package tracing makes a trace of each change of the mesh, and sends it by OTLP: from the first
// changed file to the last answer of a proxy.
//
// The parts of the server know nothing of traces. They report, after the fact, when their step
// began and ended; the spans are made of that when the last proxy has answered. Classes of
// proxies have spans, not proxies, so that a fleet of any size makes a bounded number of them.
//
// [Tracer.Run] ends with its context, after the last spans were sent. The SDK's exporter has a
// goroutine of its own from [New] until Run returns or [Tracer.Close] was called. What cannot be
// sent in time is dropped: nothing waits for the receiver.
package tracing
