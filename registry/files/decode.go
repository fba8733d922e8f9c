package files

import (
	"github.com/fairlead/fairlead/registry/codes"
	"github.com/fairlead/fairlead/registry/lastgood"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// Decoder reads the content of a file. It must be a pure function of its
// arguments.
type Decoder interface {
	// Decode reads a file of manifests.
	Decode(opts manifest.Options, path string, content []byte) lastgood.Decoded
	// ReadMeshConfig reads the file of mesh settings; they are nil if a fault
	// keeps the whole file out.
	ReadMeshConfig(path string, content []byte) (*manifest.MeshSettings, []manifest.Fault)
	// DecodeMeshNetworks reads the file of networks; they are nil if there is an error.
	DecodeMeshNetworks(path string, content []byte) (*mesh.Networks, []manifest.Fault)
}

// manifests is the Decoder of package manifest.
type manifests struct{}

// Decode implements Decoder.
func (manifests) Decode(opts manifest.Options, path string, content []byte) lastgood.Decoded {
	return lastgood.Manifests(opts, path, content)
}

// ReadMeshConfig implements Decoder.
func (manifests) ReadMeshConfig(path string, content []byte) (*manifest.MeshSettings, []manifest.Fault) {
	return manifest.ReadMeshConfig(path, content)
}

// DecodeMeshNetworks implements Decoder.
func (manifests) DecodeMeshNetworks(path string, content []byte) (*mesh.Networks, []manifest.Fault) {
	return manifest.DecodeMeshNetworks(path, content)
}

// Codes of the faults that this package finds itself; see package lastgood.
const (
	// CodeTwice: an object is defined twice.
	CodeTwice = lastgood.CodeTwice
	// CodeUnread: a file or directory cannot be read; its objects stay in force.
	CodeUnread = lastgood.CodeUnread
	// CodeRestless: a file is written all the time and is never stable.
	CodeRestless manifest.Code = codes.FilesRestless
	// CodeLoss: a file that was written in place lacks objects that restrict, and is not in force yet.
	CodeLoss manifest.Code = codes.FilesLoss
	// CodeLink: a symbolic link leads to a place that is not read.
	CodeLink manifest.Code = codes.FilesLink
)

// decode decodes a text, with the limits of its root.
func (r *root) decode(c *Config, path string, b *lastgood.Blob) lastgood.Decoded {
	text := r.decodeContent(c, path, b)
	text.End = lastgood.EndOf(c.Name, path, b.Content)
	return text
}

func (r *root) decodeContent(c *Config, path string, b *lastgood.Blob) lastgood.Decoded {
	if r.isFile() && b.Blank() {
		return lastgood.Decoded{Unparsable: true, Faults: []manifest.Fault{Blank(r.kind, path)}}
	}
	switch r.kind {
	case mesh.KindMeshConfig:
		return decodeMeshConfig(c.Decoder, path, b)
	case mesh.KindMeshNetworks:
		return decodeMeshNetworks(c.Decoder, path, b)
	default:
	}
	opts := manifest.Options{
		Source: c.Name, Namespace: r.namespace(), Namespaces: r.Namespaces, Domain: c.Domain,
		NoUnixSockets: r.NoUnixSockets(), NoFiles: r.NoFiles(), NoLocalAddresses: r.NoLocalAddresses(), Unquoted: len(r.Namespaces) > 0,
	}
	return c.Decoder.Decode(opts, path, b.Content)
}

// Blank is what an empty file of settings or networks has. In Istio it means all defaults, or no network;
// here it is a fault, because a failed write leaves an empty file.
func Blank(kind mesh.Kind, path string) manifest.Fault {
	message := `the file is empty; write "{}" for all defaults`
	if kind == mesh.KindMeshNetworks {
		message = `the file is empty; write "{}" for no networks`
	}
	return manifest.Fault{
		Origin: &mesh.Origin{Path: path, Line: 1, Column: 1}, Key: mesh.Key{Kind: kind}, Code: CodeUnread, Severity: manifest.Error, Message: message,
	}
}

// decodeMeshNetworks decodes the networks as a file of one object.
func decodeMeshNetworks(d Decoder, path string, b *lastgood.Blob) lastgood.Decoded {
	networks, faults := d.DecodeMeshNetworks(path, b.Content)
	if networks == nil {
		return lastgood.Decoded{Unparsable: true, Faults: faults}
	}
	return lastgood.Decoded{Faults: faults, Objects: []lastgood.Object{{
		Key: networks.Key, Origin: networks.Origin, Hash: networks.Hash, Fragment: &mesh.Fragment{MeshNetworks: networks},
	}}}
}

// decodeMeshConfig decodes the settings as a file of one object.
func decodeMeshConfig(d Decoder, path string, b *lastgood.Blob) lastgood.Decoded {
	origin := &mesh.Origin{Path: path, Line: 1, Column: 1}
	settings, faults := d.ReadMeshConfig(path, b.Content)
	if settings == nil {
		return lastgood.Decoded{Unparsable: true, Faults: faults}
	}
	config := settings.Config
	if config.Origin != nil {
		origin = config.Origin
	}
	o := lastgood.Object{Key: config.Key, Origin: origin, Hash: config.Hash, Fragment: &mesh.Fragment{MeshConfig: config}}
	if settings.Partial {
		o.Over = func(last *mesh.Fragment) (*mesh.Fragment, mesh.Hash) {
			c := settings.Over(last.MeshConfig)
			return &mesh.Fragment{MeshConfig: c}, c.Hash
		}
		o.Encode = func(f *mesh.Fragment) [][]byte { return manifest.EncodeMeshConfig(f.MeshConfig) }
	}
	return lastgood.Decoded{Faults: faults, Objects: []lastgood.Object{o}}
}
