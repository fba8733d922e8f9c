package lastgood

import (
	"bytes"
	"cmp"
	"crypto/sha256"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Blob is the content of a text; immutable.
type Blob struct {
	Hash    [sha256.Size]byte
	Content []byte
}

// NewBlob makes a Blob of a content that nobody writes to any more.
func NewBlob(content []byte) *Blob { return &Blob{Hash: sha256.Sum256(content), Content: content} }

// Blank says that there is nothing in it but white space.
func (b *Blob) Blank() bool { return len(bytes.TrimSpace(b.Content)) == 0 }

// Text is a text as it is believed. It belongs to the goroutine of its Set.
type Text struct {
	// Path names the text to people, and in a Set.
	Path string
	// Order comes before Path where texts are put in order.
	Order int
	// Root and Rel name it in the state directory, whatever Path is: the place
	// that the source reads, and the text in it.
	Root, Rel string
	// Twin is comparable: two texts of equal content and equal Twin are one, that
	// is reached by two paths. Nil is equal to nothing.
	Twin any
	// V is what it gives.
	V *Version

	shard int
}

// Compare orders texts as they count: where two give an object, the first does.
func (t *Text) Compare(o *Text) int {
	return cmp.Or(cmp.Compare(t.Order, o.Order), cmp.Compare(t.Path, o.Path))
}

// troubled reports whether something is to be said of it.
func (t *Text) troubled() bool { return len(t.V.faults)+len(t.V.kept) > 0 }

// twin reports whether two texts are one.
func (t *Text) twin(o *Text) bool {
	return t != o && t.Twin != nil && t.Twin == o.Twin && t.V.blob.Hash == o.V.blob.Hash
}

// claimed are the objects that a text speaks of, each with whether it names it
// more than once.
func (t *Text) claimed() map[mesh.Key]bool {
	keys := make(map[mesh.Key]bool, len(t.V.seen))
	for _, o := range t.V.seen {
		if o.Key.Name != "" || o.Key == settingsKey() {
			_, again := keys[o.Key]
			keys[o.Key] = again
		}
	}
	for key := range t.V.kept {
		keys[key] = keys[key] || false
	}
	return keys
}

// settingsKey is the key of the one object that has no name, the settings of the
// mesh.
func settingsKey() mesh.Key { return mesh.Key{Kind: mesh.KindMeshConfig} }
