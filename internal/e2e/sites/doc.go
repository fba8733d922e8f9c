// Package sites has the tests of two sites that are one mesh: two groups of hosts in network
// namespaces that meet only at their gateways, each with a control plane of its own. The mesh is
// that of examples/two-sites.
package sites
