// Package settings reads the configuration of a function from its environment:
// one struct, read once, refused as a whole.
//
//	type Config struct {
//		_ struct{} `section:"The pipeline"`
//
//		Topic   string        `env:"TOPIC,required" match:"topic" doc:"The one topic that is read."`
//		Timeout time.Duration `env:"TIMEOUT" envDefault:"30s" min:"1s" max:"14m" doc:"Bounds one insert."`
//	}
//
//	err := settings.Read(environ, &config, func(p *settings.Problems) {
//		p.Unless(config.Timeout < limit, "TIMEOUT", "is %s: less than %s expected", config.Timeout, limit)
//	})
//
// The struct's tags are the one place that says what a setting is called, what
// it may be and what it means: the reader, the messages and docs/settings.md are
// made from them. Tags: env and envDefault as caarlos0/env reads them; oneof
// (values), min and max (inclusive) and match (a form in forms.go) say what is
// allowed; section begins a section of the page. A struct that functions have in
// common is embedded.
//
// A variable that starts with ONCEHOUSE_ and is no setting is refused, because a
// misspelt setting would have no effect.
package settings
