// Package gateways has the test of the examples: it applies each page to a mesh of hosts with real
// Envoys, does what the README tells people to do, and sees what it says they will see.
//
// Nobody imports it. The pages are in pages, and the hosts and services that they take for granted in lab.yaml.
package gateways
