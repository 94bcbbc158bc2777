(** * Three-valued logic

    A truth value is [Some true], [Some false], or [None] where it is not known.  The connectives are
    Kleene's: they know as much as can be known, and are monotone in what is known. *)

Definition kleene_and (a b : option bool) : option bool :=
  match a, b with
  | Some false, _ | _, Some false => Some false
  | Some true, Some true => Some true
  | _, _ => None
  end.

Definition kleene_or (a b : option bool) : option bool :=
  match a, b with
  | Some true, _ | _, Some true => Some true
  | Some false, Some false => Some false
  | _, _ => None
  end.

Definition kleene_not (a : option bool) : option bool := option_map negb a.

Lemma kleene_and_mono a a' b b' c :
  (forall v, a = Some v -> a' = Some v) -> (forall v, b = Some v -> b' = Some v) ->
  kleene_and a b = Some c -> kleene_and a' b' = Some c.
Proof.
  intros Ha Hb. destruct a as [[] |], b as [[] |]; simpl; try discriminate;
    try rewrite (Ha _ eq_refl); try rewrite (Hb _ eq_refl); auto; destruct a' as [[] |]; auto.
Qed.

Lemma kleene_or_mono a a' b b' c :
  (forall v, a = Some v -> a' = Some v) -> (forall v, b = Some v -> b' = Some v) ->
  kleene_or a b = Some c -> kleene_or a' b' = Some c.
Proof.
  intros Ha Hb. destruct a as [[] |], b as [[] |]; simpl; try discriminate;
    try rewrite (Ha _ eq_refl); try rewrite (Hb _ eq_refl); auto; destruct a' as [[] |]; auto.
Qed.
