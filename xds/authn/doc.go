// Package authn translates the rules of RequestAuthentication objects for Envoy: they become
// one configuration of its filter envoy.filters.http.jwt_authn, as in Istio
// (pilot/pkg/security/authn/policy_applier.go).
//
// A request without a token passes, and one with a token that no rule accepts is answered
// with 401. Which objects select a workload, where the filter stands and how it travels is
// decided elsewhere; so is what a token's claims are good for.
//
// Everything is a pure function: equal rules and keys give equal configuration. There are no
// goroutines.
package authn
