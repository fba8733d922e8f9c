// Package metakeys has the name of each annotation and label of an object, and of each key of a
// registration in Consul, that the product gives a meaning to. Whatever reads one takes its name
// from here: a test parses the sources and fails for a key that is read and not declared. Each can
// name something of others, so that package registry/tenantrules has a row for each: what holds
// where a tenant writes it. It starts no goroutine.
package metakeys
