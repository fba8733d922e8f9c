// Package manifest reads documents in Istio's API: it says whether each is
// valid, in the words of a Kubernetes API server and of Istio's admission
// webhook taken together, and turns the valid ones into values of package mesh.
//
// A document is read as YAML 1.1 (package tree), compared with the schema of
// its kind's custom resource definition (package schema), its metadata judged
// as Kubernetes would, turned into the message of istio.io/api, and judged by
// the rules of Istio's webhook (package webhook). Every fault is reported, at
// the line and column of the value it is about; a fault in one place does not
// hide one in another. An object is in force only if it has no error and uses
// nothing that this build does not implement (inforce.go).
//
// It reads no files, keeps no state and starts no goroutine: [Decode] is a
// function of its arguments. The sources call it (registry/files,
// registry/consul), and the commands validate, analyze and apply.
package manifest
