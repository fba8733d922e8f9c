// Package envoy turns parts of a view into Envoy's resources.
//
// Every builder takes one part, never the whole view, and is pure: same part,
// same bytes. One file holds a resource type or a filter.
package envoy
