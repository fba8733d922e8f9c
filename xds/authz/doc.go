// Package authz turns the AuthorizationPolicies of a workload into Envoy's role-based
// access control (RBAC), with the meaning that they have in Istio.
//
// [HTTP] makes the rules of HTTP connection managers, [TCP] those of network filters.
// [Rules] has one [Set] for each action; its methods make the filters. Which policies apply
// to a workload is decided before: the package knows no selectors and no root namespace.
//
// The functions are pure. Their result depends only on the policies and [Options], and not
// on the order of the policies. They never fail: what cannot be translated denies, and the
// result has a [PolicyError] for it. Nothing here fails open.
//
// The package starts no goroutine and keeps no state; any goroutine may call it.
package authz
