// Package tree reads YAML as Istio reads it and keeps where everything was
// written.
//
// Istio parses manifests with a YAML 1.1 reader and then turns them into JSON:
// an unquoted y, yes or on is a boolean, 0777 is an octal number, 1_000 has a
// separator, 1.0 is an integer, and the key 8080 is the text "8080". Parse
// follows those rules on top of the nodes of gopkg.in/yaml.v3, so that a
// document means here what it means there, and each value knows its line and
// column.
//
// It knows nothing of kinds, schemas or meshes, and it is bounded: depth and
// the number of nodes that aliases expand to have limits. Only package manifest
// and its children call it. It starts no goroutine; a tree is read-only once
// Parse has returned it.
package tree
