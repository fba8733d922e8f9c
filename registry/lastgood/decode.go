package lastgood

import (
	"cmp"
	"log/slog"
	"strings"

	"github.com/fairlead/fairlead/registry/codes"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// Decoded is the result of decoding a text.
type Decoded struct {
	// Unparsable means that the text is not YAML, so its objects are unknown; Objects is
	// ignored then. Faults says why.
	Unparsable bool
	// Open means that an error leaves open which objects the text has.
	Open bool
	// End is where the text ends; nil if that is not known.
	End *mesh.Origin
	// Objects are in the order of the text.
	Objects []Object
	// Faults are all that is wrong with the text and its objects.
	Faults []manifest.Fault
}

// Object is one object of a text.
type Object struct {
	// Key names it; without a name, the text does not tell which object it is, unless it is
	// Foreign.
	Key mesh.Key
	// Foreign means that it is of another project's API: nothing of it is ever in force.
	Foreign bool
	// Unbuilt means that this release has nothing of its kind in force: no version of it ever was.
	Unbuilt bool
	Origin  *mesh.Origin
	// Hash is that of the content, without Origin.
	Hash mesh.Hash
	// Fragment has the object alone, as it is in the mesh; nil for an object that is broken or
	// not in force.
	Fragment *mesh.Fragment
	// Denial, if it is not nil, stands in place of a broken object that has no last good version.
	// As an object that is not there, any version of the object in any text is preferred to it.
	Denial *mesh.Fragment
	// Expansion is what the object makes after expansion; see [manifest.Expansion].
	Expansion int
	// Weight is what it costs each proxy; see [manifest.Object.Weight].
	Weight int
	// Refused stands in place of the object if its source makes too much; nil for most.
	Refused *mesh.Fragment
	// Over, if it is not nil, makes the object from what was in force of it before, nil or a
	// fragment: an object of which some fields keep their last good values. It must be a pure
	// function. Fragment and Hash are its result for nil.
	Over func(last *mesh.Fragment) (*mesh.Fragment, mesh.Hash)
	// Encode, if it is not nil, writes a fragment that was in force as texts that decode to it:
	// the state directory has them beside the text, which alone would not bring it back. Those
	// after the first are for releases that can read them.
	Encode func(f *mesh.Fragment) [][]byte
}

// Manifests reads a text of manifests.
func Manifests(opts manifest.Options, path string, content []byte) Decoded {
	file, faults := manifest.Decode(opts, path, content)
	d := Decoded{
		Unparsable: file.Unparsable, Open: file.Open, End: EndOf(opts.Source, path, content),
		Faults: faults, Objects: make([]Object, 0, len(file.Objects)),
	}
	for _, o := range file.Objects {
		d.Faults = append(d.Faults, o.NotInForce...)
		obj := Object{Key: o.Meta.Key, Origin: o.Meta.Origin, Hash: o.Meta.Hash, Fragment: o.Fragment(), Denial: o.Denial(), Unbuilt: o.Unbuilt(), Expansion: o.Expansion().Count, Weight: o.Weight(), Refused: o.Refused()}
		if obj.Foreign = o.Foreign; o.Foreign || misnamed(o) {
			obj.Key = mesh.Key{}
		}
		d.Objects = append(d.Objects, obj)
	}
	return d
}

// misnamed reports whether the fault is in the kind or name of the object: then the object
// that was meant is not removed.
func misnamed(o *manifest.Object) bool {
	if o.Meta.Kind == "" || o.Meta.Name == "" {
		return true
	}
	for _, f := range o.Faults {
		names := strings.HasPrefix(f.Field, "metadata.name") // the namespace too
		if f.Severity == manifest.Error && (f.Code == manifest.CodeKind || names && f.Code != manifest.CodeNamespace) {
			return true
		}
	}
	return false
}

// Codes of the faults that are found here; FL02xx is package manifest's range,
// and those of FL03xx that are not here are those of single sources.
const (
	// CodeTwice: an object is defined twice.
	CodeTwice manifest.Code = codes.SourceTwice
	// CodeUnread: a text, or a part of where texts are, cannot be read; its objects stay in
	// force.
	CodeUnread manifest.Code = codes.SourceUnread
	// CodeKept: an object is broken, and an earlier version stays in force.
	CodeKept manifest.Code = codes.SourceKept
	// CodeDenies: a security policy is broken and never was good, and what it selects denies.
	CodeDenies manifest.Code = codes.SourceDenies
	// CodeCut: a text lost its end, and what it lacks stays in force.
	CodeCut manifest.Code = codes.SourceCut
	// CodeExcess: the objects of the source make too much after expansion, and this one is refused.
	CodeExcess manifest.Code = codes.SourceExcess
	// CodeState: the state directory is damaged.
	CodeState manifest.Code = codes.SourceState
)

func faultAt(o *mesh.Origin, key mesh.Key, code manifest.Code, message string) manifest.Fault {
	return manifest.Fault{Origin: o, Key: key, Code: code, Severity: manifest.Error, Message: message}
}

// CompareFaults orders faults by position.
func CompareFaults(a, b manifest.Fault) int {
	return cmp.Or(cmp.Compare(a.Origin.Path, b.Origin.Path), cmp.Compare(a.Origin.Line, b.Origin.Line),
		cmp.Compare(a.Origin.Column, b.Origin.Column), cmp.Compare(a.Field, b.Field), cmp.Compare(a.Message, b.Message))
}

// maxLogged bounds what one text can write into the log at a time.
const maxLogged = 20

// LogFaults logs the faults of a text, and that its earlier objects stay in force, if they do.
func LogFaults(log *slog.Logger, path string, v *Version) {
	if n := len(v.kept); n > 0 {
		log.Warn("invalid objects: their last good versions stay in force", "path", path, "objects", n)
	}
	for i, f := range v.faults {
		if i == maxLogged {
			log.Warn("more faults in this file (not logged)", "path", f.Origin.Path, "more", len(v.faults)-i)
			return
		}
		if f.Severity == manifest.Warning {
			log.Warn("manifest fault", "fault", f.String())
		} else {
			log.Error("manifest fault", "fault", f.String())
		}
	}
}
