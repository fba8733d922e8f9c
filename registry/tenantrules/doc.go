// Package tenantrules is a table of all fields of manifests, and of all annotations, labels and keys
// of registrations in Consul, that can name something of others: a host, an address, a port, a file,
// a credential, an identity, a URL or an expression; and of the rule that holds for each in an object
// of a source that is bound to a namespace.
//
// It decides nothing: the rules are in registry/manifest, registry/mesh and xds/view. It is what
// tests and documentation iterate, so that a field that Istio adds, or a key that the product begins
// to read, cannot be forgotten: one walks all of them and fails for one without a row, and package
// cmd/fairlead tries each row with a tenant. It starts no goroutine.
package tenantrules
