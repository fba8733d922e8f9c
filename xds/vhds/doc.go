// Package vhds has what server and agent need to send the virtual hosts of a route
// configuration as resources of their own (VHDS): when an Envoy is given them so, and how
// they are merged into one complete route configuration.
//
// It merges encodings, and decodes only the names in them: a route configuration with a
// thousand virtual hosts is merged again each time one of them changes. Package xds/envoy
// uses it to make complete route configurations, so both forms have the same content by
// construction. The agent's relay uses it for Envoys that need complete ones. The package
// starts no goroutine and keeps no state; any goroutine may call it.
package vhds
