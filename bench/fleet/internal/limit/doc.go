// Package limit is the least that a gRPC server can do for a fleet: it fans one
// message, encoded beforehand, out to every stream, and knows nothing of what is
// in it. No control plane on the same transport can be faster.
//
// Each stream has two goroutines, one that reads and one that writes.
package limit
