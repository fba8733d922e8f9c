// Package schema judges a document by the schema that Istio's custom resource
// definition gives its kind: required fields, types, bounds, patterns, enums,
// oneofs, keyed lists, unknown fields, and the CEL rules.
//
// The schemas are those of the istio.io/api module that go.mod pins, without
// their descriptions, in table.jsonl. That file is made and checked for
// freshness by this package's tests (go test ./registry/manifest/schema -run
// Table -update); see NOTICE for where it comes from.
//
// It validates what a Kubernetes API server would of an object's spec and
// status, not its metadata, and none of the rules of Istio's webhook. Only
// package manifest calls it. It starts no goroutine; a Set may be used by many.
package schema
