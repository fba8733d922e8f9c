// Package picture keeps on disk what a datacenter's catalog said last, so that a
// control plane that starts while Consul is away has what it had. It is written
// in parts: what one service costs is a small file, however large the catalog.
//
// It keeps what Consul said and not what became of it: whoever starts with other
// settings makes other objects of the same picture.
//
// A [Store] is for one source, package consul. [Store.Run] owns the goroutine
// that writes; all other methods may be called from any goroutine and wait for
// no disk.
package picture
