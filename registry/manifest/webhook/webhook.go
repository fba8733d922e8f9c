package webhook

import (
	"google.golang.org/protobuf/proto"

	meshconfig "istio.io/api/mesh/v1alpha1"
)

// Fault is one rule that an object breaks.
type Fault struct {
	// Path is the field at fault in the names a person writes, such as
	// "spec.http[0].match[1].uri"; "" means the whole object.
	Path string
	// Warning is true when Istio would take the object and only warn.
	Warning bool
	// Message says what is wrong and what to write instead.
	Message string
}

// Object is one decoded manifest: its head, and its spec as a message of istio.io/api.
type Object struct {
	Kind, Namespace, Name string
	Labels, Annotations   map[string]string
	// Spec must be non-nil.
	Spec proto.Message
}

// Validate judges o by the rules of Istio's validating webhook and returns all
// faults, in the order of the fields. An object without a fault that is not a
// Warning is valid.
func Validate(_ Object) []Fault {
	return nil
}

// MeshConfig judges a mesh configuration, its proxy defaults included.
// Paths start at the top of the document ("defaultConfig.drainDuration").
func MeshConfig(_ *meshconfig.MeshConfig) []Fault {
	return nil
}
