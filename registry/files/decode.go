package files

import (
	"cmp"
	"fmt"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Decoder reads the content of a file. It must be a pure function of its
// arguments.
type Decoder interface {
	// Decode reads a file of manifests. Objects that name no namespace are in
	// the one given.
	Decode(path, namespace string, content []byte) Decoded
	// DecodeMeshConfig reads the file of mesh settings; with any fault of
	// severity error the settings are nil.
	DecodeMeshConfig(path string, content []byte) (*mesh.MeshConfig, []Fault)
}

// Decoded is what a file says.
type Decoded struct {
	// Unparsable says that the text is not YAML, so that nobody can tell which
	// objects it holds. Faults says why.
	Unparsable bool
	// Objects are in the order of the file.
	Objects []Object
	// Faults are all that is wrong with the file and its objects.
	Faults []Fault
}

// Object is one object of a file.
type Object struct {
	// Key names it; without a name, the text does not tell which object it is.
	Key    mesh.Key
	Origin *mesh.Origin
	// Hash is that of the content, without Origin.
	Hash mesh.Hash
	// Piece is what the object gives to the mesh, in a Fragment that holds
	// nothing else; nil for an object that is broken or not in force.
	Piece *mesh.Fragment
}

// Severity says how bad a fault is.
type Severity string

// The severities.
const (
	Error   Severity = "error"
	Warning Severity = "warning"
)

// Fault is something wrong with a file, for people.
type Fault struct {
	// Path, Line and Column say where; Line and Column are 0 where they are not
	// known.
	Path   string `json:"file"`
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
	// Code is stable, such as "FL0101"; may be empty.
	Code     string   `json:"code,omitempty"`
	Severity Severity `json:"severity"`
	// Key is the object; zero for a fault of the whole file.
	Key mesh.Key `json:"key,omitzero"`
	// Field is the path in the object, such as "spec.http[0]"; may be empty.
	Field   string `json:"field,omitempty"`
	Message string `json:"message"`
}

// String is path:line:column: severity [code] object field: message.
func (f Fault) String() string {
	origin := mesh.Origin{Path: f.Path, Line: f.Line, Column: f.Column}
	s := fmt.Sprintf("%s: %s", &origin, f.Severity)
	if f.Code != "" {
		s += " [" + f.Code + "]"
	}
	if f.Key != (mesh.Key{}) {
		s += " " + f.Key.String()
	}
	if f.Field != "" {
		s += " " + f.Field
	}
	return s + ": " + f.Message
}

func (f Fault) compare(o Fault) int {
	return cmp.Or(cmp.Compare(f.Path, o.Path), cmp.Compare(f.Line, o.Line), cmp.Compare(f.Column, o.Column),
		cmp.Compare(f.Field, o.Field), cmp.Compare(f.Message, o.Message))
}

// Codes of the faults that this package finds itself.
const (
	codeNamespace = "FL0201" // outside the namespaces of its directory
	codeTwice     = "FL0202" // defined twice
	codeUnread    = "FL0203" // cannot be read
	codeKept      = "FL0204" // an earlier version stands
	codeSettling  = "FL0205" // still being written
	codeStore     = "FL0206" // the state directory is damaged
)

func faultAt(o *mesh.Origin, key mesh.Key, code, message string) Fault {
	return Fault{Path: o.Path, Line: o.Line, Column: o.Column, Code: code, Severity: Error, Key: key, Message: message}
}
