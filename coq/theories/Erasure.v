(** * The lists of recursive patterns mean nothing to the machine

    They are there for the static checks.  Two patterns that differ in them only have the same answers,
    in the same order: the machine takes the same steps. *)

From Coq Require Import List Bool PeanoNat.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative Stores Machine Inference.

Section Erasure.
Context {Δ : Domain}.

(** The pattern with all lists empty. *)
Fixpoint erase (p : pattern) : pattern :=
  match p with
  | PVar _ | PCall _ _ => p
  | POp f ps => POp f (map erase ps)
  | PFun F ps => PFun F (map erase ps)
  | PAlt p q => PAlt (erase p) (erase q)
  | PEx x p => PEx x (erase p)
  | PGuard p g => PGuard (erase p) g
  | PLet p x e => PLet (erase p) x e
  | PMatch p p' x => PMatch (erase p) (erase p') x
  | PMu xs _ _ _ b ys => PMu xs [] [] [] (erase b) ys
  end.

Definition erase_definition (d : definition) : definition :=
  Def (d_params d) [] [] [] (erase (d_body d)).

Definition erase_rec (R : recursion) : recursion := map erase_definition R.

(** Inference changes the lists only. *)
Lemma map_erase (f : pattern -> pattern) ps :
  Forall (fun p => erase (f p) = erase p) ps -> map erase (map f ps) = map erase ps.
Proof. induction 1 as [| p ps E _ IH]; simpl; congruence. Qed.

Lemma erase_infer_bindings p : forall R, erase (infer_bindings R p) = erase p.
Proof.
  induction p using pattern_ind'; intros R; simpl; f_equal; auto;
    apply map_erase; eapply Forall_impl; eauto; simpl; auto.
Qed.

Lemma erase_infer_small p : forall R, erase (infer_small R p) = erase p.
Proof.
  induction p using pattern_ind'; intros R; simpl; f_equal; auto;
    apply map_erase; eapply Forall_impl; eauto; simpl; auto.
Qed.

Theorem erase_infer p : erase (infer p) = erase p.
Proof. unfold infer. now rewrite erase_infer_small, erase_infer_bindings. Qed.

(** ** The machine commutes with erasure *)

Context {T : Type} {Σ : Structure T}.

Definition erase_action (a : action T) : action T :=
  match a with
  | AMatch R ρ p t => AMatch (erase_rec R) ρ (erase p) t
  | AMatchC R ρ p x => AMatchC (erase_rec R) ρ (erase p) x
  | a => a
  end.

Definition erase_config (c : config T) : config T := (fst c, map erase_action (snd c)).
Definition erase_state (st : state T) : state T := map erase_config st.

Lemma erase_children R ρ k ps : forall ts,
  match_children (erase_rec R) ρ (map erase ps) ts ++ map erase_action k =
  map erase_action (match_children R ρ ps ts ++ k).
Proof. induction ps as [| p ps IH]; intros [| t ts]; simpl; auto. now rewrite IH. Qed.

Lemma erase_continue k o :
  continue (map erase_action k) o = erase_state (continue k o).
Proof. now destruct o. Qed.

Lemma erase_match σ R ρ p t k :
  match_pattern σ (erase_rec R) ρ (erase p) t (map erase_action k) =
  erase_state (match_pattern σ R ρ p t k).
Proof.
  destruct p; simpl; rewrite ?map_length; auto.
  - apply erase_continue.
  - destruct (dest t) as [g ts]. destruct (_ && _); auto. now rewrite erase_children.
  - destruct (dest t) as [g ts]. destruct (Nat.eqb _ _); auto.
    now rewrite erase_children, erase_continue.
  - unfold erase_rec. rewrite skipn_map. now destruct (skipn i R).
Qed.

Lemma erase_expand c : expand (erase_config c) = erase_state (expand c).
Proof.
  destruct c as [σ [| a k]]; [reflexivity |]. destruct a as [R ρ p t | ρ g | ρ x e | l | R ρ p x]; simpl.
  - apply erase_match.
  - now destruct (geval _ g) as [[] |].
  - destruct (eval _ e); auto. apply erase_continue.
  - now destruct (get σ l).
  - now destruct ((get σ ∘ ρ) x) as [[] |].
Qed.

Lemma erase_answers (st : state T) o : st ⇓ o -> erase_state st ⇓ o.
Proof.
  induction 1 as [| σ stk o _ IH | st o Run _ IH].
  - constructor.
  - simpl. now constructor.
  - destruct st as [| [σ [| a k]] stk]; try discriminate. apply answers_step; [reflexivity |].
    simpl step in *. unfold erase_state in IH. rewrite map_app in IH.
    change (expand (erase_config (σ, a :: k)) ++ erase_state stk ⇓ o). now rewrite erase_expand.
Qed.

Lemma unerase_answers (st : state T) o : erase_state st ⇓ o -> st ⇓ o.
Proof.
  intros H. remember (erase_state st) as st' eqn:E. revert st E.
  induction H as [| σ stk o _ IH | st' o Run _ IH]; intros st E.
  - destruct st; [constructor | discriminate].
  - destruct st as [| [σ' [| a k]] st]; try discriminate. injection E as -> E. constructor. auto.
  - subst st'. destruct st as [| [σ [| a k]] stk]; try discriminate.
    apply answers_step; [reflexivity |]. apply IH. simpl step.
    change (expand (erase_config (σ, a :: k)) ++ erase_state stk =
            erase_state (expand (σ, a :: k) ++ stk)).
    rewrite erase_expand. unfold erase_state. now rewrite map_app.
Qed.

Theorem same_erasure_answers p q (t : T) o :
  erase p = erase q -> init p t ⇓ o -> init q t ⇓ o.
Proof.
  intros E H. apply unerase_answers. change (erase_state (init q t)) with (init (erase q) t).
  rewrite <- E. now apply (erase_answers (init p t)).
Qed.

(** A pattern with its lists inferred has the answers of the pattern. *)
Theorem infer_answers p (t : T) o : init (infer p) t ⇓ o <-> init p t ⇓ o.
Proof. split; apply same_erasure_answers; [| symmetry]; apply erase_infer. Qed.
End Erasure.
