// Package client is how Consul is reached: addresses, TLS, tokens that are
// rotated, a bounded number of connections, and the rules of blocking queries.
//
// [Follow] sends blocking queries and hands on each new answer; [Get] reads once.
// Both return the same errors: a [Denied] names the ACL rule that is missing,
// [ErrThrottled] and [ErrUnavailable] the server's state.
//
// The package knows nothing of a mesh. What it is asked for is up to its
// callers, which use the types of github.com/hashicorp/consul/api.
package client
