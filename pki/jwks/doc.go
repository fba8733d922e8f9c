// Package jwks is the control plane's store of issuers' key sets: the public keys with which
// proxies verify the tokens (JWT) of end users.
//
// [Store.Want] says which key sets are wanted: by the URI of a set, or by an issuer whose
// OpenID configuration leads to it. [Store.Run] fetches them, refreshes them, and keeps the
// last good ones on disk, over restarts. [Store.Keys] is what is in force. Hosts need no way
// to an issuer, and a proxy has only keys that [Parse] approves of.
//
// A removed key is refused after Config.Refresh, 20 minutes unless set, if its issuer answers,
// or after [FileInterval] where keys are in files. A set without a key that can be used takes
// back all keys of before. While an issuer does not answer, or answers with something that is
// no key set, the last good keys stay in force, for Config.MaxAge at most. An issuer whose keys
// were never there has none: its tokens are refused, and nobody else's.
//
// Objects of tenants name URIs, and the server must not become their way into networks that
// they cannot reach. So nothing is fetched from loopback, link-local, multicast and reserved
// addresses, metadata services of clouds, and this server's own ports; and from private
// addresses only for sources that may. The address of each connection is checked when it is
// made, after names are looked up, also at redirects. With a proxy, the proxy looks names up,
// and only it can refuse where they lead: this package refuses addresses and well-known names
// in URIs. Time, size, redirects, sources and requests at a time are bounded, and each owner
// of sources has a fair share of them. What the environment says of proxies is not used.
//
// It is not for inline keys of an object, nor for tokens: nothing here verifies one.
//
// Goroutines: one owns all state and decides; up to a bound of others fetch, one writes to the
// disk. All end with Run. What others get is immutable, through atomic pointers;
// [Store.Changed] says that there is something new.
package jwks
