package server

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/fairlead/fairlead/xds"
)

// Push is what became of one snapshot at the proxies that were connected when it
// came.
type Push struct {
	Generation uint64 `json:"generation"`
	// Started is when the snapshot was announced to the streams: the decision to
	// push. Done is when the last of them had answered; null until then.
	Started time.Time  `json:"started"`
	Done    *time.Time `json:"done"`
	// Changes is how many objects differ from the snapshot before.
	Changes  int `json:"changes"`
	Touched  int `json:"touched"`
	Accepted int `json:"accepted"`
	Waiting  int `json:"waiting"`
	Rejected int `json:"rejected"`
	// Work is null until all proxies have been looked at.
	Work *PushWork `json:"work"`
}

// PushWork is what one snapshot cost the server, by its counters from when it was
// announced until all proxies had been looked at: of a proxy that connects
// meanwhile too.
type PushWork struct {
	// ViewsBuilt are proxies for which something differs, ViewsKept the others.
	ViewsBuilt uint64 `json:"views_built"`
	ViewsKept  uint64 `json:"views_kept"`
	// Classes are contents that were made, each for all proxies that share it.
	Classes uint64 `json:"classes"`
	// Built are resources that were made, each once, by the names of types that
	// a [Type] has.
	Built map[string]PushAmount `json:"built"`
}

// PushAmount is a number of resources, and the bytes that they were encoded to.
type PushAmount struct {
	Resources uint64 `json:"resources"`
	Bytes     uint64 `json:"bytes"`
}

// pushes lists the latest snapshots, oldest first.
func (s *Server) pushes(context.Context, *http.Request, struct{}) ([]Push, error) {
	out := []Push{}
	for _, r := range s.xds.Rollouts() {
		p := Push{
			Generation: r.Generation, Started: r.Started, Changes: len(r.Changes), Touched: r.Affected,
			Accepted: r.Accepted, Waiting: r.Waiting, Rejected: len(r.Rejected) + r.RejectedMore,
		}
		if !r.Done.IsZero() {
			p.Done = &r.Done
		}
		if r.Complete {
			p.Work = pushWork(r.Work)
		}
		out = append(out, p)
	}
	return out, nil
}

func pushWork(w xds.Work) *PushWork {
	out := &PushWork{ViewsBuilt: w.ViewsBuilt, ViewsKept: w.ViewsKept, Classes: w.Classes, Built: map[string]PushAmount{}}
	for t, a := range w.Built {
		out.Built[cmp.Or(shortType(t), "other")] = PushAmount(a)
	}
	return out
}
