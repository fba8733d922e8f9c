package fold

// Form is how an Envoy has a route table.
type Form uint8

// The forms.
const (
	Unknown  Form = iota // it has none, or nobody knows
	Whole                // with its virtual hosts in it
	InPieces             // its virtual hosts travel by themselves
)

// Few is how many virtual hosts a table may have that is given whole to an Envoy
// which has none of it: there is little to save, and there are fewer rules to keep.
const Few = 20

// Split reports whether the virtual hosts of a table travel by themselves to an
// Envoy that can take them so, by how many there are and how the Envoy has it now.
//
// As it has it, it keeps it for as long as it lives. From whole to pieces there is
// no way without a gap: between the table without its hosts and the hosts Envoy
// answers 404, or as long ago when it had hosts of that table already. The way
// back has none, but then there would be another one.
func Split(hosts int, has Form) bool { return has == InPieces || has == Unknown && hosts > Few }

// Takes reports whether a release of Envoy takes virtual hosts by themselves as it
// should. Before 1.37 it refuses them on its one stream; 1.37 sends its whole node
// with every answer.
func Takes(major, minor uint32) bool { return major > 1 || major == 1 && minor >= 38 }
