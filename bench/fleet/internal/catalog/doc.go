// Package catalog is what a Consul catalog is measured with: it fills a real
// Consul with thousands of services, changes their health, counts what is asked
// of Consul by a proxy in between, and watches the endpoints that come of it.
//
// It starts no process. A [Counter]'s methods may be called from anywhere.
package catalog
