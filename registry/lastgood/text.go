package lastgood

import (
	"cmp"
	"crypto/sha256"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// Blob is the content of a text; immutable.
type Blob struct {
	Hash    [sha256.Size]byte
	Content []byte
}

// NewBlob makes a Blob of a content that is not changed any more.
func NewBlob(content []byte) *Blob { return &Blob{Hash: sha256.Sum256(content), Content: content} }

// Blank reports whether there is nothing in it: what a failed write leaves.
func (b *Blob) Blank() bool { return manifest.Blank(b.Content) }

// Text is an accepted text. It belongs to the goroutine of its Set.
type Text struct {
	// Path names the text in messages, and in a Set.
	Path string
	// Order is compared before Path when texts are sorted.
	Order int
	// Root and Rel identify it in the state directory: the directory or prefix, and the text
	// in it.
	Root, Rel string
	// Twin is comparable: two texts with equal content and equal Twin are one, reached by two
	// paths. Nil equals nothing.
	Twin any
	// CreateIndex is that of Consul's key with the text; or zero. See [manifest.Options].
	CreateIndex uint64
	// V is what it gives.
	V *Version

	shard int
}

// Compare orders texts by precedence: if two define an object, the first wins.
func (t *Text) Compare(o *Text) int {
	return cmp.Or(cmp.Compare(t.Order, o.Order), cmp.Compare(t.Path, o.Path))
}

// troubled reports whether the text has faults, or objects in the place of broken ones.
func (t *Text) troubled() bool { return len(t.V.faults)+len(t.V.kept)+len(t.V.denied) > 0 }

// twin reports whether two texts are one.
func (t *Text) twin(o *Text) bool {
	return t != o && t.Twin != nil && t.Twin == o.Twin && t.V.blob.Hash == o.V.blob.Hash
}

// defines are the objects that a text defines or keeps, each with whether it defines it more
// than once.
func (t *Text) defines() map[mesh.Key]bool {
	keys := make(map[mesh.Key]bool, len(t.V.seen))
	for _, o := range t.V.seen {
		if o.Key.Name != "" || isSettings(o.Key) {
			_, again := keys[o.Key]
			keys[o.Key] = again
		}
	}
	for key := range t.V.kept {
		keys[key] = keys[key] || false
	}
	for key := range t.V.denied {
		keys[key] = keys[key] || false
	}
	return keys
}

// isSettings reports whether a key is of an object that has no name: the settings or the networks of
// the mesh.
func isSettings(k mesh.Key) bool {
	return k == mesh.Key{Kind: mesh.KindMeshConfig} || k == mesh.Key{Kind: mesh.KindMeshNetworks}
}
