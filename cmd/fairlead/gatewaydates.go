package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// gatewayDates decides which creationTimestamp apply and config push write into Gateways: what Kubernetes does
// for objects that are created. A Gateway without one comes behind those that have one, see
// [mesh.CompareGateways].
type gatewayDates struct {
	opts manifest.Options
	// stored are the Gateways that there are; new are those that got a date.
	stored, created map[mesh.Key]time.Time
	// told says that the command was told of other sources of the mesh. Otherwise the first Gateway here gets no
	// date: it would come before those without a date that serve from elsewhere.
	told bool
}

func newGatewayDates(opts manifest.Options) *gatewayDates {
	return &gatewayDates{opts: opts, stored: map[mesh.Key]time.Time{}, created: map[mesh.Key]time.Time{}}
}

// haveAll notes the Gateways of other sources.
func (d *gatewayDates) haveAll(others *tree) {
	for _, o := range others.objects() {
		if o.Meta.Kind == mesh.KindGateway {
			d.stored[o.Meta.Key] = o.Meta.Created
		}
	}
}

// have notes the Gateways of a text that is there.
func (d *gatewayDates) have(content []byte) {
	maps.Copy(d.stored, manifest.GatewayDates(d.opts, content))
}

// write gives dates to Gateways of texts that are to be written: the one that the Gateway has already; and the
// present to those that are new, if all others have a date. Where some have none, a new one with a date would
// come before these. So it would be where there are no others, unless it is known that there are none elsewhere.
func (d *gatewayDates) write(texts map[string][]byte, now time.Time) {
	kept := maps.Clone(d.stored)
	maps.DeleteFunc(kept, func(_ mesh.Key, at time.Time) bool { return at.IsZero() })
	dated, latest := true, now.UTC().Truncate(time.Second)
	after := maps.Clone(d.stored)
	for name, content := range texts {
		texts[name] = manifest.WithGatewayDates(d.opts, content, kept)
		for key, at := range manifest.GatewayDates(d.opts, texts[name]) {
			_, known := d.stored[key]
			if delete(after, key); !known && at.IsZero() {
				d.created[key] = at
				continue
			}
			after[key] = at
		}
	}
	for _, at := range after {
		dated = dated && !at.IsZero()
		if !at.Before(latest) { // by a clock that is ahead
			latest = at.Truncate(time.Second).Add(time.Second)
		}
	}
	if !dated || len(d.created) == 0 || len(after) == 0 && !d.told {
		clear(d.created)
		return
	}
	for key := range d.created {
		d.created[key] = latest
	}
	written := map[mesh.Key]time.Time{}
	for name, content := range texts {
		texts[name] = manifest.WithGatewayDates(d.opts, content, d.created)
		maps.Copy(written, manifest.GatewayDates(d.opts, texts[name]))
	}
	maps.DeleteFunc(d.created, func(key mesh.Key, _ time.Time) bool { return written[key].IsZero() }) // what cannot be edited
}

// report says which Gateways got a date.
func (d *gatewayDates) report(w io.Writer) {
	for _, key := range slices.SortedFunc(maps.Keys(d.created), mesh.Key.Compare) {
		_, _ = fmt.Fprintf(w, "%s gets creationTimestamp %q, as the other Gateways have: it comes after them\n", key, d.created[key].Format(time.RFC3339))
	}
}
