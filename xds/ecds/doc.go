// Package ecds finds the extensions that a listener names: HTTP filters whose configuration
// is a resource of its own (ECDS, type TypedExtensionConfig).
//
// It reads encodings and decodes no message: a relay reads every listener of a mesh, of which
// most name none. The agent's relay uses it to store a listener on disk together with its
// extensions. The package starts no goroutine and keeps no state; any goroutine may call it.
package ecds
