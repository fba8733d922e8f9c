package envoy_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/fairlead/fairlead/internal/race"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/envoy"
	"github.com/fairlead/fairlead/xds/view"
)

// TestEveryFileIsKnown sets each text that a manifest can have, builds Envoy's
// configuration, and looks which become names of files. Validation has to look into
// those, for sources that may not name any. What else a manifest decides on in Envoy's
// configuration is listed by TestEveryFormatIsKnown.
func TestEveryFileIsKnown(t *testing.T) {
	t.Parallel()
	race.SkipSequential(t)
	const name = "canary.pem"
	base := snapshotOf(t, strings.Replace(formatsBase, "mode: SIMPLE", "mode: MUTUAL, clientCertificate: a, privateKey: b", 1), "")
	found := map[protoreflect.FullName]bool{}
	replace(base, func(spec proto.Message, rebuild func(proto.Message) *mesh.Snapshot) {
		for _, p := range textPaths(spec.ProtoReflect().Descriptor(), nil) {
			m := proto.Clone(spec)
			p.setTo(m.ProtoReflect(), name)
			for _, r := range buildAll(view.Build(rebuild(m), formatsProxy())) {
				decoded, err := envoy.Decode(r)
				fatalIf(t, err, "decoding")
				for _, fd := range textsWith(t, decoded.ProtoReflect(), name) {
					if fd.FullName() == "envoy.config.core.v3.DataSource.filename" {
						found[p.leaf().FullName()] = true
					}
				}
			}
		}
	})
	for _, field := range slices.Sorted(maps.Keys(found)) {
		if !manifest.IsFilePath(field) {
			t.Errorf("%s is the name of a file to Envoy, and validation does not look into it", field)
		}
	}
	if len(found) < 4 {
		t.Errorf("only %v became files: the test sees too little", slices.Sorted(maps.Keys(found)))
	}
}
