// Package judge evaluates Envoy's RBAC for a described request, as Envoy does: whether it is
// allowed, and by which policy.
//
// It knows the permissions, principals and matchers that package xds/authz makes. Anything
// else is an error, and never a guess. It needs no Envoy and no network: its answers are
// about configuration, wherever that comes from.
//
// The package starts no goroutine and keeps no state; any goroutine may call it.
package judge
