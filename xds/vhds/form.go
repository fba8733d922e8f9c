package vhds

// Form is the form in which an Envoy has a route configuration.
type Form uint8

// The forms of a route configuration.
const (
	Unknown  Form = iota // it has none, or this is not known
	Inline               // it contains its virtual hosts
	Separate             // its virtual hosts are resources of their own (VHDS)
)

// MaxInline is how many virtual hosts a route configuration may have to be sent inline to
// an Envoy that does not have it yet. VHDS would save little there, and has more rules.
const MaxInline = 20

// Use reports whether the virtual hosts of a route configuration are sent by VHDS to an
// Envoy that supports it, given their number and the form in which the Envoy has them now.
//
// An Envoy keeps the form that it has, as long as the route configuration exists. From
// inline to VHDS there is no change without a gap: Envoy answers 404 from the time it gets
// the route configuration without virtual hosts until it gets the virtual hosts, also if it
// had virtual hosts of that route configuration before. The change back has no gap, but it
// would lead to another change later.
func Use(hosts int, has Form) bool { return has == Separate || has == Unknown && hosts > MaxInline }

// Supported reports whether a release of Envoy supports VHDS as it should. Releases before
// 1.37 reject it on an aggregated stream; 1.37 sends its complete node with every response.
func Supported(major, minor uint32) bool { return major > 1 || major == 1 && minor >= 38 }
